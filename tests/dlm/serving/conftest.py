"""Servers on real sockets, in threads of their own."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import httpx2
import openai
import pytest
import uvicorn
from doubles import Random
from gated import Gated
from values import V
from waiting import PATIENCE

from dlm import Engine, Policy
from dlm.serving.async_engine import AsyncEngine
from dlm.serving.protocol import Connections, Limits
from dlm.serving.server import IDLE_SECONDS, DrainingServer
from dlm.serving.service import app_of
from dlm.serving.settings import Settings

JSON = {"Content-Type": "application/json"}  # of bodies that tests spell out


@contextmanager
def serving(engine: Engine, **settings: Any) -> Iterator[SimpleNamespace]:
    """A server around `engine`: its `url`, clients `client` and `http`, and its parts.

    `in_flight()` is the number of its requests that have not ended."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        patch("dlm.serving.service.tune_process"),
        patch.object(Engine, "cold", False),  # few grammars of tests are used when they are warm
    ):
        timeout = settings.pop("shutdown_timeout", PATIENCE)
        most, by_address = settings.pop("connections", 1000), settings.pop("by_address", None)
        limits = Limits(**settings.pop("limits", {}))
        directory = settings.pop("directory", None)
        fields = {"names": ("tiny",), "slots": 4} | settings
        app, service = app_of(engine, Settings(**fields), directory)
        config = uvicorn.Config(
            app,
            log_level="error",
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=5,
            ws="none",
        )
        book = Connections(most, by_address or most)
        running = DrainingServer(config, service, timeout, book, limits, parting_seconds=0.2)
        thread = threading.Thread(
            target=lambda: asyncio.run(running.serve(sockets=[listener])), daemon=True
        )
        thread.start()
        while not running.started:
            assert thread.is_alive()
            thread.join(0.005)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        key = (settings.get("api_keys") or ("none",))[0]
        with (
            openai.OpenAI(
                base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=PATIENCE
            ) as client,
            httpx2.Client(base_url=url, timeout=PATIENCE, headers=JSON) as http,
        ):
            yield SimpleNamespace(
                address=listener.getsockname(),
                url=url,
                client=client,
                http=http,
                server=service,
                in_flight=lambda: len(service.engine._streams),
                running=running,
                engine=engine,
            )
        running.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.fixture
def anyio_backend() -> str:
    """Name of the event loop that runs tests marked `anyio`."""
    return "asyncio"


@pytest.fixture(scope="session")
def serve() -> Callable[..., Any]:
    return serving


@pytest.fixture(scope="session")
def serve_random(engine_of: Callable[..., Engine]) -> Callable[..., Any]:
    """`serve` for a model with random logits."""
    return lambda **settings: serving(engine_of(Random(V, seed=1)), **settings)


@pytest.fixture(scope="module")
def tiny() -> Iterator[SimpleNamespace]:
    """A server of the built-in model, which writes in canvases."""
    engine = Engine.load(device="cpu", slots=4, policy=Policy(), decoding="canvas")
    with serving(engine) as served:
        yield served


@pytest.fixture
def gate(tokens_of: Callable[[str], list[int]]) -> Gated:
    """A model that answers once it is opened."""
    return Gated(tokens_of('"hi there"<turn|>'))


@pytest.fixture
def async_engine(engine_of: Callable[..., Engine]) -> Callable[..., Any]:
    """An `AsyncEngine` in a context, which closes it; a gate is opened before."""

    @asynccontextmanager
    async def running(
        model: Any, slots: int = 2, max_queue: int = 4, reserved: int = 0
    ) -> AsyncIterator[AsyncEngine]:
        engine = engine_of(model, slots=slots)
        served = AsyncEngine(engine, slots, max_queue, reserved=reserved)
        try:
            yield served
        finally:
            if isinstance(model, Gated):
                model.open.set()
            await served.close()

    return running
