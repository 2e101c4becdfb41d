"""The routes of a server, answered by the replicas behind it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.responses import Response
from ray.exceptions import ObjectLostError, RayActorError
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator
from starlette.types import Message, Receive, Scope, Send

from dlm.errors import UnavailableError
from dlm.integrations.ray.call import Call
from dlm.openai.errors import told
from dlm.serving.client import ClientGoneError, while_there
from dlm.serving.prefix import prefix_of
from dlm.serving.routes import METRICS_TYPE, Routes
from dlm.serving.scrapes import merged
from dlm.serving.settings import Settings

_CHANCES = 3  # replicas that a request may be given to
_WELL = 5.0  # seconds in which some replica says that it is well
_COUNTED = 5.0  # seconds in which replicas tell what they have counted
_ENDED = (RayActorError, ObjectLostError)  # what a replica that has ended shows itself as

Messages = DeploymentResponseGenerator[Any]  # an answer, in ASGI's


class Relay(Routes):
    """Checks who asks, and how much, and hands bodies on as they are.

    A request whose replica ends, or is unavailable, before anything of its answer has been sent is
    asked again of another, at most twice. It makes no difference to the client: nothing of it is
    stored. A stream that has begun ends with an error.
    """

    def __init__(self, settings: Settings, replicas: DeploymentHandle):
        """`replicas` leads to a deployment of `Replica`."""
        super().__init__(settings)
        self._replicas = replicas
        self._ask = replicas.options(method_name="ask", stream=True)
        self._draining = False

    @asynccontextmanager
    async def serving(self, app: FastAPI) -> AsyncIterator[None]:
        yield

    async def drain(self, seconds: float) -> None:
        """Refuse what comes; and what runs is ended after so many seconds."""
        self._draining = True
        self.guard.drain()
        draining = self._replicas.broadcast("drain", seconds)
        await draining.results_async(return_exceptions=True)

    async def chat(self, request: Request) -> Response:
        return await self._relayed(request, "/v1/chat/completions")

    async def complete(self, request: Request) -> Response:
        return await self._relayed(request, "/v1/completions")

    async def decide(self, request: Request) -> Response:
        return await self._relayed(request, "/v1/decisions")

    async def tokenize(self, request: Request) -> Response:
        return await self._relayed(request, "/tokenize")

    async def detokenize(self, request: Request) -> Response:
        return await self._relayed(request, "/detokenize")

    async def models(self, request: Request) -> Response:
        return await self._relayed(request, "/v1/models")

    async def model(self, request: Request, name: str) -> Response:
        return await self._relayed(request, f"/v1/models/{name}")

    async def health(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(_WELL):
                return await self._relayed(request, "/health")
        except TimeoutError as error:
            raise UnavailableError("no replica has answered in time") from error

    async def read_metrics(self) -> Response:
        counted = await self._replicas.broadcast("metrics").results_async(
            timeout_s=_COUNTED, return_exceptions=True
        )
        texts = dict(one for one in counted if not isinstance(one, BaseException))
        return Response(merged(texts), media_type=METRICS_TYPE)

    async def _relayed(self, request: Request, path: str) -> Response:
        if self._draining:
            raise UnavailableError("the server is shutting down")
        async with self.guard.body(request) as raw:
            prefix = await asyncio.to_thread(prefix_of, raw)
        client = self.guard.client(request)
        call = Call(prefix=prefix, method=request.method, client=client, path=path, body=raw)
        return _Relayed(*await while_there(request, self._begun(call)))

    async def _begun(self, call: Call) -> tuple[Messages, list[Message]]:
        """An answer, and its first two messages: status and headers, and what is sent with them."""
        last = replace(call, tried=_CHANCES - 1)
        while call.tried < last.tried:
            with suppress(*_ENDED):
                answer, first = await self._asked(call)
                if first[0]["status"] != 503 or self._draining:
                    return answer, first
                answer.cancel()
            call = replace(call, tried=call.tried + 1)
        try:
            return await self._asked(last)
        except _ENDED as error:
            raise UnavailableError(
                f"{_CHANCES} replicas ended with this request, or beside it"
            ) from error

    async def _asked(self, call: Call) -> tuple[Messages, list[Message]]:
        answer = cast(Messages, self._ask.remote(call))
        try:
            return answer, [await anext(answer), await anext(answer)]
        except BaseException:
            answer.cancel()
            raise


class _Relayed(Response):
    """An answer as a replica sends it. Ends with the connection, and ends the request then."""

    def __init__(self, answer: Messages, first: list[Message]):
        super().__init__(status_code=first[0]["status"])
        self._answer, self._first = answer, first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientGoneError):
                await while_there(Request(scope, receive), self._send(send))
        finally:
            self._answer.cancel()

    async def _send(self, send: Send) -> None:
        for message in self._first:
            await send(message)
        try:
            async for message in self._answer:
                await send(message)
        except _ENDED:
            error = told(UnavailableError("the replica that was answering has ended"))
            last = f"data: {json.dumps(error)}\n\ndata: [DONE]\n\n"
            await send({"type": "http.response.body", "body": last.encode(), "more_body": False})
