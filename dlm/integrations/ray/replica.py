"""An engine with the application around it, which is asked by messages in the place of a socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

from ray import serve
from starlette.types import Message, Scope

from dlm.integrations.ray.call import Call
from dlm.loading import Loading
from dlm.serving.guard import CLIENT
from dlm.serving.settings import Settings

_UNSENT = 16  # messages that wait for a slow reader, before the application does


class Replica:
    """What Ray Serve has several of. Where its engine fails, its health check does: Ray ends it,
    and starts another."""

    async def __init__(self, loading: Loading, settings: Settings):
        """Keys, origins, hosts and names of requests are the ingress's affair."""
        from dlm.serving.app import app_of  # with torch: the ingress has no use for it

        engine = await asyncio.to_thread(loading.engine)
        inner = replace(
            settings,
            api_keys=(),
            allowed_origins=(),
            allowed_hosts=("*",),
            root_path="",
            request_ids=False,
        )
        self._app, self._service = app_of(engine, inner)
        self._serving = self._service.serving(self._app)
        await self._serving.__aenter__()  # and never out: it ends with its process

    async def ask(self, call: Call) -> AsyncIterator[Message]:
        """What the application sends, in ASGI's messages. Closing the iterator, or cancelling who
        reads it, cancels the request."""
        sent = asyncio.Queue[Message | None](_UNSENT)
        running = asyncio.ensure_future(self._run(call, sent))
        try:
            while (message := await sent.get()) is not None:
                yield message
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def metrics(self) -> tuple[str, str]:
        """Its own name, and what it has counted, as Prometheus reads it."""
        name = serve.get_replica_context().replica_id.unique_id
        return name, self._service.metrics.text().decode()

    async def drain(self, seconds: float) -> None:
        """Refuse what comes, and let what runs go on for so many seconds at most; then end it."""
        await self._service.engine.drain(seconds)

    async def check_health(self) -> None:
        """Raises where the engine has failed."""
        failure = self._service.engine.failure
        if failure is not None:
            raise RuntimeError(f"the engine has failed: {failure}")

    async def _run(self, call: Call, sent: "asyncio.Queue[Message | None]") -> None:
        arrived = [{"type": "http.request", "body": call.body, "more_body": False}]

        async def receive() -> Message:
            return arrived.pop() if arrived else await asyncio.get_running_loop().create_future()

        with suppress(Exception):  # it has been answered, and is in the log
            await self._app(_scope(call), receive, sent.put)
        await sent.put(None)


def _scope(call: Call) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": call.method,
        "scheme": "http",
        "path": call.path,
        "raw_path": call.path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],  # as the ingress has found
        "client": None,
        CLIENT: call.client,
        "server": None,
    }
