"""ASGI middleware of the server: answers to unexpected errors, and an id for every answer.

This module knows no routes and no bodies.
"""

import re
from collections.abc import Awaitable, Callable
from secrets import token_hex

from fastapi import Request
from fastapi.responses import Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ErrorHandler = Callable[[Request, Exception], Awaitable[Response]]


class UnexpectedErrors:
    """ASGI middleware that answers unexpected errors with `handler`.

    It is the innermost one, so that the answers pass through all other middleware. FastAPI's own
    handler would answer outside of it, without its headers.
    """

    def __init__(self, app: ASGIApp, handler: ErrorHandler):
        self._app, self._handler = app, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer_begun = False

        async def watched_send(message: Message) -> None:
            nonlocal answer_begun
            answer_begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except Exception as error:
            if answer_begun or scope["type"] != "http":
                raise
            answer = await self._handler(Request(scope), error)
            await answer(scope, receive, send)


_ID_HEADER = "X-Request-Id"
_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestIds:
    """ASGI middleware that puts an id into the header of every answer: the client's, or a new
    one."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client_id = Headers(scope=scope).get(_ID_HEADER, "")
        id = client_id if _ID.fullmatch(client_id) else token_hex(16)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[_ID_HEADER] = id
            await send(message)

        await self._app(scope, receive, send_with_id)
