"""Errors that nobody foresaw, answered within all other middleware: its headers are theirs too."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Told = Callable[[Request, Exception], Awaitable[Response]]


class Faults:
    """ASGI middleware. A framework answers such errors outside of all middleware."""

    def __init__(self, app: ASGIApp, told: Told):
        self._app, self._told = app, told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if begun or scope["type"] != "http":
                raise
            answer = await self._told(Request(scope), error)
            await answer(scope, receive, send)
