"""Checks on where a request is sent, before anything else looks at it.

A page on the web may give its own name the address of this machine (DNS rebinding). A browser then
takes this server for the page's own, and lets the page read its answers; but it still sends the
page's name as `Host`.
"""

import re
from collections.abc import Sequence
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from dlm.openai.errors import error_body

_OPEN = ("/health",)  # tells nothing, and is asked for by address
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PORT = re.compile(r":[0-9]*\Z")


class Entrance:
    """ASGI middleware. 403 for a `Host` that is not allowed, 404 for a path that no route has but
    that a router would take for one: with a line feed at its end."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str]):
        """`hosts` are names without ports, `*.NAME` for all names below one, or `*`. The names and
        addresses of this machine's loopback are always allowed."""
        self._app, self._any = app, "*" in hosts
        self._hosts = frozenset(_bare(host) for host in hosts if not host.startswith("*"))
        self._below = tuple(host[1:].lower() for host in hosts if host.startswith("*."))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            problem = self._problem(scope)
            if problem is not None:
                status, message = problem
                await JSONResponse(error_body(status, message), status)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _problem(self, scope: Scope) -> tuple[int, str] | None:
        if _CONTROL.search(scope["path"]):
            return 404, "Not Found"
        if self._any or scope["path"].removeprefix(scope.get("root_path", "")) in _OPEN:
            return None
        for given in Headers(scope=scope).getlist("host"):
            if not self.allows(given):
                return 403, (
                    f"Host is {given[:80]!r}: this server takes requests for this machine only "
                    "(localhost, 127.0.0.1, [::1]); start it with `--allowed-hosts NAME` for others"
                )
        return None

    def allows(self, given: str) -> bool:
        """Whether `given`, the value of a `Host` header, names an allowed host."""
        host = _bare(_PORT.sub("", given))
        return self._any or host in self._hosts or host.endswith(self._below) or _is_loopback(host)


def _bare(host: str) -> str:
    return host.strip().lower().removeprefix("[").removesuffix("]").removesuffix(".")


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
