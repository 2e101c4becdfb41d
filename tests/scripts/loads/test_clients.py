"""The load script finds no fault with a server that has none."""

import json

import load
from processes import free_port


def test_a_server_under_load_loses_nothing(run_command):
    flags = (
        "clients",
        "--clients",
        4,
        "--seconds",
        1,
        "--slots",
        2,
        "--hostile",
        "--port",
        free_port(),
    )
    code, out, err = run_command(load, *flags)
    assert code == 0, err
    found = json.loads(out)
    assert (found["lost"], found["leaked"], found["invalid"]) == (0, 0, [])
    assert found["ends"]["stop"] > 0
    assert min(found["tokens_per_second"], found["engine_tokens_per_second"]) > 0
    assert found["megabytes"][-1] > 100
