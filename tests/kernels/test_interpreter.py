"""Triton's interpreter is wrong where tests/support/interpreter.py says, and right with it."""

import os
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).with_name("interpreted.py")
BOUNDS = {  # of fp32 sums of 64 terms, or exact
    "bf16 dot": 64 * 2**-24,
    "fp16 dot": 64 * 2**-24,
    "bf16 cast": 0.0,
    "e4m3 cast": 0.0,
    "dot_scaled": 64 * 2**-24,
}


def errors(how: str) -> dict[str, float]:
    path = [str(FILE.parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(path)}
    command = [sys.executable, "-W", "ignore", FILE, how]
    output = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    return {name: float(e) for name, e in (line.split(": ") for line in output.splitlines())}


def test_the_interpreter_alone_is_wrong():
    """When this fails, Triton has mended something: the patch of that can go."""
    wrong = errors("vanilla")

    assert {name for name, bound in BOUNDS.items() if wrong[name] > bound} == BOUNDS.keys() - {
        "fp16 dot"
    }
    assert wrong["bf16 dot"] > 1e3, "the bits are multiplied"


def test_the_patched_interpreter_is_right():
    right = errors("patched")

    assert right.keys() == BOUNDS.keys()
    assert all(right[name] <= bound for name, bound in BOUNDS.items()), right
