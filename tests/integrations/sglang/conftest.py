"""SGLang's server on the CPU, with models of random weights: with the plugin or without."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import httpx
import invoice_requests
import jsonschema
import pytest
import sdar
import torch
from measure.schemas import read_schemas
from served_process import ServedProcess
from transformers import AutoTokenizer
from weightless import Knowing, Noise, Weightless

from dlm.grammar import Compiled, Compiler, JsonSchema, Vocabulary

HERE = Path(__file__).parent
TINY = HERE.parents[2] / "models" / "tiny"
SMALL = "zz_small"  # the plugin that makes SGLang small enough for these tests
_READY = 900  # seconds until a server answers: it imports SGLang in three processes
ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "DLM_TEST_MODELS": "sdar,llama",
    "DLM_TEST_MASK": "4",
    "OMP_NUM_THREADS": "1",  # threads that spin take the cores from each other
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}
FAILS = 201  # a budget; grammars of requests with it raise in a step
_BUGS = "a request failed by a bug", "Scheduler hit an exception"
FLAGS = (
    "--device cpu --attention-backend torch_native --dtype float32 --disable-cuda-graph "
    "--skip-server-warmup --max-total-tokens 16384 --max-running-requests 4 --context-length 1024 "
    "--watchdog-timeout 3000 --log-level info --tool-call-parser qwen25 --sleep-on-idle"
).split()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--schemas", metavar="FILE", help="real schemas, as JSON lines, .jsonl or .xz")


class Server(ServedProcess):
    """SGLang's OpenAI server, and a client of it."""

    def __init__(
        self,
        model: Path,
        folder: Path,
        flags: tuple[str, ...] = (),
        plugin: bool = True,
        variables: Mapping[str, str] = MappingProxyType({}),
    ):
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model)]
        command += ["--served-model-name", "random", *FLAGS, *flags]
        plugins = {} if plugin else {"SGLANG_PLUGINS": SMALL}
        own = os.environ | ENVIRONMENT | plugins | variables
        super().__init__(command, folder / "server.log", own, _READY)
        self._judged = 0  # characters of the log that `is_well` reads no more

    def post(self, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
        text = json.dumps({"model": "random"} | body)  # a lone surrogate has only this form
        headers = {"content-type": "application/json"}
        return httpx.post(f"{self.url}{path}", content=text, headers=headers, timeout=600)

    def chat(self, content: str, **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": content}]
        return self.post(**({"messages": messages, "max_tokens": 96} | body))

    def choice(self, content: str, **body: Any) -> dict[str, Any]:
        """Return the one choice of an answer, which must be there."""
        answer = self.chat(content, **body)
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        return choice

    def is_well(self) -> bool:
        """Return whether a free request is answered, and the log names no bug."""
        answered = self.chat("Hello.", max_tokens=8).status_code == 200
        log = self.log.read_text()[self._judged :]
        return answered and not any(problem in log for problem in _BUGS)

    def forget_bugs(self) -> None:
        """Leave out what the log says so far, from now on."""
        self._judged = len(self.log.read_text())


def diffusion(folder: Path, algorithm: str, block: int, *flags: str) -> tuple[str, ...]:
    """Return the flags of a diffusion model's server."""
    config = folder / "algorithm.yaml"
    config.write_text(f"block_size: {block}\n")
    return ("--dllm-algorithm", algorithm, "--dllm-algorithm-config", str(config), *flags)


def served(model: Path, folder: Path, **how: Any) -> Iterator[Server]:
    server = Server(model, folder, **how)
    try:
        server.wait()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    torch.set_num_threads(1)
    size = json.loads((TINY / "config.json").read_text())["text_config"]["vocab_size"]
    control = [invoice_requests.MASK, invoice_requests.DELETE, invoice_requests.SPLIT]
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    return Vocabulary.from_tokenizer(tokenizer, size, [1], 0, control=control)


@pytest.fixture(scope="session")
def compiler(vocabulary: Vocabulary) -> Compiler:
    return Compiler(vocabulary)


@pytest.fixture(scope="session")
def compiled(compiler: Compiler) -> Compiled:
    """The grammar of an invoice."""
    return compiler.compile(JsonSchema(invoice_requests.INVOICE))


@pytest.fixture(scope="session")
def texts(vocabulary: Vocabulary) -> dict[int, list[int]]:
    """Tokens of an invoice for each key, with the stop."""
    return {key: invoice_requests.text(vocabulary, key) for key in range(40)}


@pytest.fixture(scope="session")
def models(compiled: Compiled, texts: dict[int, list[int]]) -> dict[str, Weightless]:
    size = len(compiled.vocabulary.pieces)
    return {
        "knowing": Knowing(compiled, texts),
        "flat": Noise(size, 1.0),
        "sure": Noise(size, 12.0),
    }


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sdar.write(TINY, tmp_path_factory.mktemp("sdar"))


@pytest.fixture(scope="session")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    flags, variables = diffusion(folder, "LowConfidence", 32), {"DLM_TEST_FAILS": str(FAILS)}
    yield from served(model, folder, flags=flags, variables=variables)


def object_of(properties: Mapping[str, Any], **keywords: Any) -> dict[str, Any]:
    """Return the schema of an object with these properties alone."""
    closed = {"required": [*properties], "additionalProperties": False}
    return {"type": "object", "properties": dict(properties), **closed, **keywords}


SCHEMAS = [
    object_of(
        {"id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}, "paid": {"type": "boolean"}}
    ),
    object_of({"a": object_of({"b": {"type": "array", "items": {"type": "integer"}}})}),
    object_of({"x": {"type": "number", "minimum": 0.5, "exclusiveMaximum": 1}}),
    {"type": "array", "minItems": 2, "maxItems": 3, "items": {"enum": ["lamp", "red paint"]}},
    object_of(
        {"at": {"type": "string", "format": "date"}, "text": {"type": "string", "maxLength": 9}}
    ),
    object_of(
        {"tree": {"$ref": "#/$defs/node"}},
        **{
            "$defs": {
                "node": object_of(
                    {
                        "name": {"type": "string", "maxLength": 5},
                        "inner": {
                            "type": "array",
                            "items": {"$ref": "#/$defs/node"},
                            "maxItems": 2,
                        },
                    }
                )
            }
        },
    ),
]


@pytest.fixture(scope="session")
def schemas(request: pytest.FixtureRequest) -> list[Any]:
    """Schemas of many forms: real ones, if there is a file of them."""
    path = request.config.getoption("--schemas")
    if path is None:
        return SCHEMAS
    return [row["schema"] for row in Random(0).sample(read_schemas(Path(path)), 180)]


def fails_alone(server: Server) -> None:
    """Send requests together, some of whose grammars raise in a step, and check the answers."""
    assert server.is_well()

    def ask(i: int) -> httpx.Response:
        bound = {"response_format": json_schema(SCHEMAS[0]), "max_tokens": FAILS + i % 3 - 1}
        return server.chat("word " * (i + 1), **(bound if i % 3 else {"max_tokens": 64}))

    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(ask, range(9)))
    for i, answer in enumerate(answers):
        if i % 3 == 1:
            assert answer.status_code == 500
            assert "a bug, by the test" in answer.text
        else:
            assert answer.status_code == 200, answer.text
        if i % 3 == 2:
            content = answer.json()["choices"][0]["message"]["content"]
            jsonschema.validate(json.loads(content), SCHEMAS[0])
    server.forget_bugs()
    assert server.is_well()


def json_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
