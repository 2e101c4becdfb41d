"""Triton's interpreter is wrong where tests/support/interpreter.py says, and right with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("interpreted.py")
BOUNDS = {  # of fp32 sums of 64 terms, or exact
    "bf16 dot": 64 * 2**-24,
    "fp16 dot": 64 * 2**-24,
    "bf16 cast": 0.0,
    "e4m3 cast": 0.0,
    "dot_scaled": 64 * 2**-24,
}


@pytest.fixture(scope="module")
def errors() -> dict[str, dict[str, float]]:
    """Return the error of each operation, in the interpreter as it is and patched."""
    path = [str(FILE.parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(path)}
    command = [sys.executable, "-W", "ignore", FILE]
    output = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: dict[str, dict[str, float]] = {"vanilla": {}, "patched": {}}
    for line in output.splitlines():
        mode, name, error = line.split(": ")
        found[mode][name] = float(error)
    return found


def test_the_interpreter_alone_is_wrong(errors):
    """If this fails, Triton has fixed an error: its patch can be removed."""
    wrong = errors["vanilla"]

    assert {name for name, bound in BOUNDS.items() if wrong[name] > bound} == BOUNDS.keys() - {
        "fp16 dot"
    }
    assert wrong["bf16 dot"] > 1e3, "it multiplies the bits"


def test_the_patched_interpreter_is_right(errors):
    right = errors["patched"]

    assert right.keys() == BOUNDS.keys()
    assert all(right[name] <= bound for name, bound in BOUNDS.items()), right
