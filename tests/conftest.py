"""Set-up of all tests: devices, seeds, and checks of all shapes that annotations state."""

import gc
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from functools import cache, partialmethod
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import shapes
import torch
from commands import Ended, exit_code
from exhaustive import is_exhaustive
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
_IN_BOTH = "test_openai_python.py", "test_anthropic_python.py"  # other clients: `make clients`
collect_ignore += [
    f"clients/{path.name}"
    for path in Path(__file__).parent.joinpath("clients").glob("test_*.py")
    if path.name not in _IN_BOTH
]

gc.disable()  # until all tests are collected: whatever they import stays
shapes.install()

settings.register_profile("exhaustive", deadline=None, derandomize=True)  # machines are noisy
settings.register_profile("default", settings.get_profile("exhaustive"), max_examples=20)
settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tokenizer", metavar="FILE", help="for made-up grammars: a tokenizer.json")
    parser.addoption("--walks", type=int, metavar="N", help="walks through random grammars")
    parser.addoption("--walk-seed", type=int, default=1, metavar="N", help="the seed of walks")
    parser.addoption("--made-up", type=int, default=6, metavar="N", help="grammars of each kind")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leave what the tests import out of collections, which visit a million objects otherwise; and
    collect after 20,000 new objects rather than 700, since grammars make many that last: their
    tests spent a tenth of the time on collections."""
    result = yield
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
    return result


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests that wait for processes first: other tests run beside them. So do long files that
    would otherwise come last, when no other test is left to run beside them."""
    tests = shapes.ROOT / "tests"
    first = tuple(map(str, (tests / "scripts", tests / "dlm" / "cli", tests / "test_")))
    items.sort(key=lambda item: not str(item.path).startswith(first))


def pytest_runtest_setup(item: pytest.Item) -> None:
    shapes.schedule.begin(every=1 if is_exhaustive() else 20)
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if item.get_closest_marker("gpu") and (interpreted or not torch.cuda.is_available()):
        pytest.skip("needs a CUDA device, and kernels that are compiled for it")
    if item.get_closest_marker("interpreted") and not interpreted:
        pytest.skip("needs Triton's interpreter")


@pytest.fixture(scope="module")
def frozen() -> None:
    """Leave what earlier tests hold, and have left, out of collections, for tests that collect:
    one collection takes two seconds otherwise, and warns of sockets of other tests."""
    gc.freeze()


@pytest.fixture
def run_command(monkeypatch, capsys) -> Callable[..., Ended]:
    """Run a script in this process: exit code, stdout and stderr."""

    def run_command(script: ModuleType, *args: object, **more: Any) -> Ended:
        code = exit_code(monkeypatch, script, *args, **more)
        return Ended(code, *capsys.readouterr())

    return run_command


@pytest.fixture
def refusal_of(run_command) -> Callable[..., str]:
    """Run a script that refuses its arguments: its stderr, one line that begins with its name."""

    def refusal_of(script: ModuleType, *args: object, **more: Any) -> str:
        code, out, err = run_command(script, *args, **more)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        name = script.__name__.rpartition(".")[2]
        assert re.match(rf"{name}\.py( {args[0]})?: " if args else rf"{name}\.py: ", err), err
        return err

    return refusal_of


@pytest.fixture
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def rng() -> torch.Generator:
    """On the CPU whatever the device: a test draws the same numbers everywhere."""
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def engine_workers():
    """The processes that compile for all engines of tests; two of them take a second to start."""
    from dlm.grammar import Workers

    made = Workers()
    yield made
    made.close()


@pytest.fixture(scope="session")
def vocabulary_of():
    """`Vocabulary.from_tokenizer`, but a vocabulary that was made before is returned again."""
    from dlm.grammar import Vocabulary

    known = {}

    def vocabulary_of(tokenizer, size, stops, pad, thought=None, **more):
        key = id(tokenizer), size, tuple(stops), pad, thought, *sorted(more.items())
        if key not in known:  # the tokenizer is kept too, so that its id stays its own
            made = Vocabulary.from_tokenizer(tokenizer, size, stops, pad, thought, **more)
            known[key] = made, tokenizer
        return known[key][0]

    return vocabulary_of


@pytest.fixture(scope="session", autouse=True)
def shared_parts(engine_workers, vocabulary_of):
    """Let engines share what takes longest to make: compiler processes and vocabularies. Let HTTP
    clients share the certificates of authorities, which each would read anew."""
    from dlm import Engine

    with pytest.MonkeyPatch.context() as patch:
        if find_spec("httpcore2"):  # tests on a borrowed GPU go without it
            import httpcore2

            read = cache(httpcore2.default_ssl_context)
            patch.setattr("httpcore2.default_ssl_context", read)
        patch.setattr(Engine, "__init__", partialmethod(Engine.__init__, workers=engine_workers))
        patch.setattr("dlm.engine.Vocabulary", SimpleNamespace(from_tokenizer=vocabulary_of))
        yield


@pytest.fixture(scope="session")
def built_in():
    """The engine of the built-in checkpoint, which writes in canvases."""
    from dlm import Engine

    return Engine.load(device="cpu", decoding="canvas")
