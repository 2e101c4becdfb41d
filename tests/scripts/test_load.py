"""The load script finds no fault with a server that has none."""

import json
import socket
import sys

import load


def test_a_server_under_load_loses_nothing(monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = str(one.getsockname()[1])
    flags = ["--clients", "6", "--seconds", "2", "--slots", "2", "--hostile", "--port", port]
    monkeypatch.setattr(sys, "argv", ["load.py", *flags])
    monkeypatch.setattr(load, "tune_garbage_collector", lambda: None)  # for its own process
    load.main()
    found = json.loads(capsys.readouterr().out)
    assert (found["lost"], found["leaked"], found["invalid"]) == (0, 0, [])
    assert found["ends"]["stop"] > 0
    assert min(found["tokens_per_second"], found["engine_tokens_per_second"]) > 0
    assert found["megabytes"][-1] > 100
