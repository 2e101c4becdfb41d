"""What all tests share: devices, seeds, and shapes that are checked wherever they are written."""

import os
import signal
import threading

import jaxtyping
import pytest
import shapes
import torch
from hypothesis import settings

# Tests run in several processes, beside others: threads that wait for one another by spinning take
# four times as long. Those that tests start hear of it by the environment, workers of pytest too.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 starves actors on a busy machine
if threading.current_thread() is threading.main_thread():
    # A shell's background jobs ignore SIGINT, and so would all commands that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton
elif os.environ.get("TRITON_INTERPRET") != "1":
    import on_device

    on_device.install()

collect_ignore = ["integrations"]  # it takes an environment of its own: `make vllm`

jaxtyping.install_import_hook(shapes.hooked(), "beartype.beartype")

settings.register_profile("dlm", deadline=None, derandomize=True)  # machines are noisy
settings.load_profile("dlm")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tokenizer", metavar="FILE", help="for made-up grammars: a tokenizer.json")
    parser.addoption("--made-up", type=int, default=6, metavar="N", help="grammars of each kind")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts processes and waits for them comes first: last, there is nothing beside it."""
    first = [shapes.ROOT / "tests" / "scripts", shapes.ROOT / "tests" / "dlm" / "cli"]
    items.sort(key=lambda item: not any(map(item.path.is_relative_to, first)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if item.get_closest_marker("gpu") and (interpreted or not torch.cuda.is_available()):
        pytest.skip("needs a CUDA device, and kernels that are compiled for it")
    if item.get_closest_marker("interpreted") and not interpreted:
        pytest.skip("needs Triton's interpreter")


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
