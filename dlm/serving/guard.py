"""Checks of requests before they reach the engine, and forms of errors.

`Entrance` checks `Host` first, since a web page may give its own name the address of this machine
(DNS rebinding): a browser then lets the page read this server's answers, but still sends the page's
name as `Host`. `Guard` checks keys, and types and sizes of bodies. `until_disconnected` ends work
for a client that has gone. Errors have Anthropic's form for its routes, and OpenAI's for all
others.
"""

import asyncio
import hmac
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv6Address, ip_address
from typing import Any, TypeVar

from fastapi import Request
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from dlm.anthropic.answers import anthropic_body, anthropic_error
from dlm.errors import DlmError, QueueFullError, UnavailableError
from dlm.openai.answers import describe_error, error_body, public_message, status_of
from dlm.openai.body import LARGE, Body
from dlm.serving.pace import PIECE
from dlm.serving.settings import Settings, address_of

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

VERSION_HEADER = "anthropic-version"  # sent by clients of Anthropic's API


def is_anthropic(scope: Scope, path: str | None = None) -> bool:
    """Whether a request is one of Anthropic's API: its route is, or it asks for models, whose
    routes both APIs have, with the header of Anthropic's clients. `path` is the route that the
    client meant, by default that of its request."""
    route: str = scope["path"].removeprefix(scope.get("root_path", "")) if path is None else path
    if route.startswith("/v1/models"):
        return VERSION_HEADER in Headers(scope=scope)
    return route.startswith("/v1/messages")


def status_body(scope: Scope, status: int, message: str, path: str | None = None) -> Body:
    """Return the body of an answer with the status of an error. `path` is the route that the client
    meant, by default that of its request."""
    form = anthropic_body if is_anthropic(scope, path) else error_body
    return form(status, message)


def last_events(path: str, error: Exception, number: int) -> str:
    """Return the server-sent events that end a stream of the route at `path` with an error, after
    `number` events of a response."""
    body, mark = describe_error(error), "data: [DONE]\n\n"
    if path.startswith("/v1/messages"):
        body, mark = anthropic_error(error), ""
    elif path == "/v1/responses":
        problem = {"code": "server_error", "message": public_message(error), "param": None}
        body, mark = {"type": "error", **problem, "sequence_number": number}, ""
    name = "" if mark else "event: error\n"
    return f"{name}data: {json.dumps(body)}\n\n{mark}"


def exception_body(scope: Scope, error: Exception) -> Body:
    """Return the body of the answer to a request that failed with `error`."""
    form = anthropic_error if is_anthropic(scope) else describe_error
    return form(error)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A body that has arrived."""

    size: int  # bytes
    client: str  # name of the client, as `Guard.client` returns it
    at: float  # time at which its request began to arrive, by `perf_counter`


class ClientGoneError(Exception):
    """Error for a client that has closed its connection before its answer."""


async def until_disconnected(
    request: Request, work: Coroutine[Any, Any, T], undo: Callable[[T], None] = lambda _: None
) -> T:
    """Return what `work` returns. Raises `ClientGoneError` if the client disconnects first; `work`
    is then cancelled, and a result that it returns all the same is passed to `undo`."""

    def undo_result(ended: asyncio.Task[T]) -> None:
        if not ended.cancelled() and ended.exception() is None:
            undo(ended.result())

    working = asyncio.ensure_future(work)
    disconnecting = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({working, disconnecting}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError
        return working.result()
    except BaseException:
        working.add_done_callback(undo_result)
        if not working.done():
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working
        raise
    finally:
        disconnecting.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def note(error: Exception) -> None:
    """Log an error whose details the client does not get."""
    if not isinstance(error, DlmError) or status_of(error) == 500:
        _LOG.error("a request failed", exc_info=error)


_ENDING = "the server is shutting down"
CLIENT = "dlm.client"  # key of a scope with the client's name, if another process has determined it


@dataclass(eq=False, slots=True)
class _Upload:
    """A body that is arriving."""

    timeout: asyncio.Timeout
    size: int = 0  # bytes that have arrived
    crowded_out: bool = False


class Guard:
    """Checks of one server. They raise `HTTPException`."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._uploads: dict[_Upload, None] = {}  # in the order in which they began
        self._receiving = 0  # bytes of bodies that are arriving
        self._held = 0  # bytes of bodies that have arrived and are being read
        self._draining = False
        self._keys = [_digest(key) for key in settings.api_keys]

    async def check_key(self, request: Request) -> None:
        """Raise 401 without a valid key, in a time that does not depend on the keys."""
        sent, key = _key(request)
        digest = _digest(key)
        valid = [hmac.compare_digest(digest, key_digest) for key_digest in self._keys]
        if self._keys and not any(valid):
            problem = "Incorrect API key provided" if sent else "An API key is missing"
            message = f"{problem}: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`"
            raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})

    def client(self, request: Request) -> str:
        """Return the name of a request's client, for sharing slots: the digest of its key, or if
        the server has no keys, its network."""
        if (name := request.scope.get(CLIENT)) is not None:
            return name
        if self._keys:
            return _digest(_key(request)[1]).hex()
        return network_of(request.client.host if request.client else None) or ""

    def drain(self) -> None:
        """Refuse bodies from now on, also those that are arriving."""
        self._draining = True
        for upload in list(self._uploads):
            with suppress(RuntimeError):  # its timeout has expired already
                upload.timeout.reschedule(0)

    async def check_type(self, request: Request) -> None:
        """Raise 415 for a body whose type is not JSON. Browsers let any web page send bodies of
        other types; for JSON they first check that its origin is allowed (`allowed_origins`)."""
        content_type = request.headers.get("content-type", "")
        if content_type.partition(";")[0].strip().lower() != "application/json":
            header = (
                f"Content-Type is {content_type[:80]!r}"
                if content_type
                else "Content-Type is missing"
            )
            raise HTTPException(415, f"{header}: send `Content-Type: application/json`")

    @asynccontextmanager
    async def body(
        self, request: Request, next_piece: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncIterator[bytes]:
        """Receive a body, and count its bytes as held while the context is open. For each piece of
        a large body `next_piece` is awaited, if there is one; meanwhile no more is received.

        Raises 413 for a body that is too large, and 408 for one that does not arrive in time.
        If too many bytes are arriving in all, the body that began first raises `QueueFullError`, so
        that slow clients keep no others out; so does a large body if too many bytes are held.
        Raises `UnavailableError` while the server drains, and `ClientGoneError`.
        """
        raw = await self._received(request, next_piece)
        if len(raw) >= LARGE and self._held + len(raw) > self._settings.max_bodies_bytes:
            raise QueueFullError("the server is receiving too much data; try again later")
        self._held += len(raw)
        try:
            yield raw
        finally:
            self._held -= len(raw)

    async def _received(
        self, request: Request, next_piece: Callable[[], Awaitable[None]] | None
    ) -> bytes:
        if self._draining:
            raise UnavailableError(_ENDING)
        parts, upload = list[bytes](), _Upload(asyncio.timeout(self._settings.body_seconds))
        due = LARGE  # bytes at which the body has to wait
        try:
            async with upload.timeout:
                self._uploads[upload] = None
                async for part in request.stream():
                    self._take(upload, len(part))
                    parts.append(part)
                    if next_piece is not None and upload.size >= due:
                        await self._pause(upload, next_piece)
                        due = upload.size + PIECE
        except ClientDisconnect as error:
            raise ClientGoneError from error
        except TimeoutError as error:
            if upload.crowded_out:
                raise QueueFullError(
                    "too many bodies are arriving at once; try again later"
                ) from error
            if self._draining:
                raise UnavailableError(_ENDING) from error
            raise HTTPException(408, "the body did not arrive in time") from error
        finally:
            self._drop(upload)
        return b"".join(parts)

    def _take(self, upload: _Upload, size: int) -> None:
        """Count `size` bytes that have arrived."""
        upload.size += size
        self._receiving += size
        most = self._settings.max_body_bytes
        if upload.size > most:
            raise HTTPException(413, f"the body has more than {most} bytes")
        if self._receiving > self._settings.max_bodies_bytes and self._uploads:
            longest = next(iter(self._uploads))
            longest.crowded_out = True
            with suppress(RuntimeError):  # its timeout has expired already
                longest.timeout.reschedule(0)
            self._drop(longest)

    async def _pause(self, upload: _Upload, next_piece: Callable[[], Awaitable[None]]) -> None:
        """Await `next_piece`; that time does not count against the client."""
        loop, timeout = asyncio.get_running_loop(), upload.timeout
        end = timeout.when()
        if upload.crowded_out or self._draining or end is None:
            await next_piece()
            return
        seconds = end - loop.time()
        timeout.reschedule(None)
        await next_piece()
        if not (upload.crowded_out or self._draining):
            timeout.reschedule(loop.time() + seconds)

    def _drop(self, upload: _Upload) -> None:
        self._receiving -= upload.size
        upload.size = 0
        self._uploads.pop(upload, None)


def _key(request: Request) -> tuple[bool, str]:
    """Return whether the header of a key was sent, and the key."""
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and key:
        return True, key.strip()
    other = request.headers.get("x-api-key", "")  # as Anthropic's clients send it
    return bool(key or other), other.strip()


def _digest(key: str) -> bytes:
    return sha256(key.encode()).digest()


_OPEN = ("/health",)  # has no content, and load balancers request it by address
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PORT = re.compile(r":[0-9]*\Z")


class Entrance:
    """ASGI middleware that answers 403 to a `Host` that is not allowed, and 404 to a path with
    control characters: a router would ignore a line feed at its end. It sets the scope's
    `root_path`, so that paths are served with that prefix and without it."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str], root_path: str = ""):
        """`hosts` are names without ports, `*.NAME` for all names below one, or `*`. The names and
        addresses of this machine's loopback are always allowed. `root_path` is the prefix that a
        proxy may remove; without one, the scope's stays."""
        self._app, self._any, self._root_path = app, "*" in hosts, root_path
        self._hosts = frozenset(_bare(host) for host in hosts if not host.startswith("*"))
        self._below = tuple(host[1:].lower() for host in hosts if host.startswith("*."))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if self._root_path:
                scope["root_path"] = self._root_path
            problem = self._problem(scope)
            if problem is not None:
                status, message = problem
                body = status_body(scope, status, message)
                await JSONResponse(body, status)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _problem(self, scope: Scope) -> tuple[int, str] | None:
        if _CONTROL.search(scope["path"]):
            return 404, "Not Found"
        if self._any or scope["path"].removeprefix(scope.get("root_path", "")) in _OPEN:
            return None
        for host in Headers(scope=scope).getlist("host"):
            if not self.allows(host):
                return 403, (
                    f"Host is {host[:80]!r}: this server takes requests for this machine only "
                    "(localhost, 127.0.0.1, [::1]); start it with `--allowed-hosts NAME` for others"
                )
        return None

    def allows(self, header: str) -> bool:
        """Whether `header`, the value of a `Host` header, names an allowed host."""
        host = _bare(_PORT.sub("", header))
        return self._any or host in self._hosts or host.endswith(self._below) or _is_loopback(host)


def _bare(host: str) -> str:
    return host.strip().lower().removeprefix("[").removesuffix("]").removesuffix(".")


def _is_loopback(host: str) -> bool:
    address = address_of(host)
    named = host == "localhost" or host.endswith(".localhost")
    return named or (address is not None and address.is_loopback)


_NETWORK_BITS = 64  # bits of an IPv6 address that name a network: one client has all the rest


def network_of(host: str | None) -> str | None:
    """Return the name of the network of the address `host`: the address itself, or the first 64
    bits of an IPv6 address. None for no address, as on a Unix socket."""
    if not host:
        return None
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    network = int(address) >> _NETWORK_BITS << _NETWORK_BITS
    return f"{IPv6Address(network)}/{_NETWORK_BITS}"
