"""A name for every request, in the header of its answer: the client's own, or one made here."""

import re
from secrets import token_hex

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADER = "X-Request-Id"
_NAME = re.compile(r"[\x21-\x7e]{1,128}")


class RequestIds:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(_HEADER, "")
        name = given if _NAME.fullmatch(given) else token_hex(16)

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[_HEADER] = name
            await send(message)

        await self._app(scope, receive, send_named)
