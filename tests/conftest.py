"""What all tests share: devices, seeds, and shapes that are checked wherever they are written."""

import os
from pathlib import Path

import jaxtyping
import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton

# Names, not just "dlm": that would cover dlm.kernels, whose jit helpers the hook breaks.
_DLM = Path(__file__).parent.parent / "dlm"
jaxtyping.install_import_hook(
    ["dlm.grammar", "dlm.models", *sorted(f"dlm.{path.stem}" for path in _DLM.glob("*.py"))],
    "beartype.beartype",
)


torch.set_num_threads(1)  # with more, a step waits for the slowest, and longest on a busy machine
settings.register_profile("dlm", deadline=None, derandomize=True)  # machines are noisy
settings.load_profile("dlm")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tokenizer", metavar="FILE", help="for made-up grammars: a tokenizer.json")
    parser.addoption("--made-up", type=int, default=6, metavar="N", help="grammars of each kind")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def rng() -> torch.Generator:
    """On the CPU whatever the device: a test draws the same numbers everywhere."""
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def built_in():
    """The engine of the built-in checkpoint."""
    from dlm import Engine

    return Engine.load(device="cpu")
