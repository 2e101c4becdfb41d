"""Tests of the measurement of the host's part of a pass."""

import json
import sys

import bench
import pytest


def test_the_host_is_timed_without_files(monkeypatch, capsys):
    monkeypatch.setattr(bench, "HOST_SLOTS", (1, 2))
    monkeypatch.setattr(sys, "argv", ["bench.py", "--host", "--json"])
    bench.main()
    found = json.loads(capsys.readouterr().out)
    assert [*found] == ["host, 1 slots", "host, 2 slots"]
    assert all(each["p50"] > 0 for each in found.values())


def test_all_else_takes_files(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench.py"])
    with pytest.raises(SystemExit):
        bench.main()
    assert "--schemas and --tokenizer, or --host" in capsys.readouterr().err
