"""vLLM on the CPU, with the built-in model: in processes of its own, with the plugin or without."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import openai
import pytest
import wild
from served_process import ServedProcess
from training.extraction import extract

HERE = Path(__file__).parent
TINY = HERE.parents[2] / "models" / "tiny"
_READY = 600  # seconds until a server answers: it imports vLLM in three processes
ENVIRONMENT = {
    "TRITON_INTERPRET": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",  # threads that spin take the cores from each other
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--held-out", type=int, default=200, metavar="N", help="prompts")
    parser.addoption("--mixed", type=int, default=40, metavar="N", help="requests, some aborted")
    parser.addoption("--schemas", metavar="FILE", help="real schemas, as JSON lines, .jsonl or .xz")


def environment(plugin: bool, **more: str) -> dict[str, str]:
    plugins = {} if plugin else {"VLLM_PLUGINS": ""}
    return os.environ | ENVIRONMENT | plugins | more


Jobs = list[dict[str, Any]]


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Run jobs through `LLM`, in a process of their own."""

    def run(
        together: Jobs,
        alone: Jobs = (),
        *,
        model: Path = TINY,
        plugin: bool = True,
        fail_at: int | None = None,
        **engine: Any,
    ) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("answers")
        jobs, results = folder / "jobs.json", folder / "results.json"
        all_jobs: dict[str, Any] = {"together": list(together), "alone": list(alone)}
        all_jobs |= {} if fail_at is None else {"fail_at": fail_at}
        jobs.write_text(json.dumps(all_jobs))
        command = [sys.executable, HERE / "answers.py", model, jobs, results, json.dumps(engine)]
        own = environment(plugin, VLLM_ENABLE_V1_MULTIPROCESSING="0")
        done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(results.read_text()) | {"log": done.stdout + done.stderr}

    return run


class Server(ServedProcess):
    """vLLM's OpenAI server, and a client of it."""

    def __init__(
        self,
        model: Path,
        log: Path,
        plugin: bool = True,
        args: tuple[str, ...] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
    ):
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
        command += ["--served-model-name", "tiny", "--dtype", "float32"]
        command += ["--enforce-eager", "--limit-mm-per-prompt", '{"image": 0, "video": 0}']
        command += ["--tool-call-parser", "gemma4", "--enable-auto-tool-choice"]
        command += ["--reasoning-parser", "gemma4", *args]
        super().__init__(command, log, environment(plugin, **variables), _READY)
        self.client = openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=600
        )

    def metrics(self) -> dict[str, float]:
        """Return vLLM's counters, by name; labels are left out."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if line and line[0] != "#"]
        return {name.split("{")[0]: float(value) for name, value in pairs}

    def chat(self, content: str, **more: Any) -> Any:
        messages = [{"role": "user", "content": content}]
        return self.client.chat.completions.create(
            model="tiny", **({"messages": messages, "max_tokens": 128} | more)
        )


def served(folder: Path, **how: Any) -> Iterator[Server]:
    server = Server(log=folder / "server.log", **how)
    try:
        server.wait()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    args = ("--max-model-len", "1024", "--max-num-seqs", "8")
    yield from served(tmp_path_factory.mktemp("server"), model=TINY, args=args)


@pytest.fixture(scope="session")
def wild_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wild.write(TINY, tmp_path_factory.mktemp("wild"))


@pytest.fixture(scope="session")
def held_out(request: pytest.FixtureRequest) -> list[Any]:
    """Prompts that the model was not trained on, with their schemas and right answers."""
    count = request.config.getoption("--held-out")
    return [extract(Random(f"built in/{i}"), "heldout") for i in range(count)]
