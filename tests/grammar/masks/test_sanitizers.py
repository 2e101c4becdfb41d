"""The extension in C under sanitizers, which find reads beyond arrays and undefined behaviour."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[3]
COMPILER = shutil.which("cc")
FLAGS = "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all"
# The tests that call each function of the extension.
TESTS = (
    "test_bits.py",
    "test_rows.py",
    "test_walk_in_c.py",
    "../parse/test_costs_in_c.py",
    *("../parse/test_state_table.py", "../parse/test_states_in_c.py", "../regex/test_words.py"),
)
LOADED = """
import pytest, sys
from importlib import util
spec = util.spec_from_file_location("dlm.grammar._walk", sys.argv[1])
sys.modules[spec.name] = module = util.module_from_spec(spec)
spec.loader.exec_module(module)
failed = pytest.main(sys.argv[2:])
from dlm.grammar.masks.bits import NATIVE
assert NATIVE is module
sys.exit(failed)
"""
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(COMPILER is None, reason="no C compiler"),
]


def compiled(target, *arguments):
    sanitized = *FLAGS, "-fsanitize=address,undefined"
    subprocess.run([COMPILER, *sanitized, *map(str, arguments), "-o", str(target)], check=True)
    return target


def library(name):
    """Return the path of a library of the compiler."""
    done = subprocess.run(
        [COMPILER, f"-print-file-name={name}"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_sanitizers_find_no_fault_in_walks_of_random_tries(tmp_path):
    driver = compiled(tmp_path / "driver", HERE / "walk_driver.c", f"-I{ROOT / 'grammar'}")
    done = subprocess.run([driver, "3000"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3000 walks\n"


def test_sanitizers_find_no_fault_in_what_tests_call_from_python(tmp_path):
    sources = (ROOT / "grammar").glob("_*.c")
    include = f"-I{sysconfig.get_paths()['include']}"
    extension = compiled(tmp_path / "_walk.abi3.so", "-shared", "-fPIC", include, *sources)
    environment = os.environ | {
        "DLM_NATIVE": "1",
        "LD_PRELOAD": f"{library('libasan.so')} {library('libubsan.so')}",
        # The interpreter keeps memory when it ends; and a test wants more memory than there is.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
    }
    chosen = (
        "-qx",
        "-pno:cacheprovider",
        "-knot left_out and not found and not without and not pages",
    )
    tests = [HERE / name for name in TESTS]
    command = [sys.executable, "-c", LOADED, extension, *chosen, *tests]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
