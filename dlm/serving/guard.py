"""Settings of a server, and checks of requests before they reach the engine.

`Entrance` checks `Host` first, since a web page may give its own name the address of this machine
(DNS rebinding): a browser then lets the page read this server's answers, but still sends the page's
name as `Host`. `Guard` checks keys, and types and sizes of bodies.
"""

import asyncio
import hmac
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address

from fastapi import Request
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from dlm.errors import DlmError, QueueFullError, UnavailableError
from dlm.serving.answering import ClientGoneError, status_body
from dlm.serving.async_engine import LARGE
from dlm.serving.protocol import network_of

_HOST = re.compile(r"\*|(\*\.)?[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings with the defaults of `scripts/serve.py`. Raises `DlmError` for impossible values."""

    names: tuple[str, ...] = ("dlm",)  # names of the model; answers have the first by default
    slots: int = 8  # requests that run at once
    reserved_slots: int = 0  # slots that are kept for clients without a running request
    max_queue: int = 256  # requests that may wait for a slot
    api_keys: tuple[str, ...] = ()  # each of them is valid; empty: no key is needed
    allowed_origins: tuple[str, ...] = ()  # origins of web pages that may send requests
    allowed_hosts: tuple[str, ...] = ("*",)  # values of a request's Host; *: any
    root_path: str = ""  # prefix of paths that a proxy removes
    request_ids: bool = False  # answers have the header X-Request-Id
    max_body_bytes: int = 16 << 20  # size of one body; images in it are in base64
    max_bodies_bytes: int = 256 << 20  # of all bodies that arrive, and of all that are being read
    body_seconds: float = 60.0  # time in which a body must have arrived
    keep_alive: float = 10.0  # seconds of silence after which a stream sends a comment
    stored_responses: int = 1000  # of `/v1/responses` that are kept; 0: none
    stored_bytes: int = 64 << 20  # that they may take together
    retry_after: int = 1  # seconds that clients wait if the queue is full

    def __post_init__(self) -> None:
        for name in ("slots", "max_body_bytes", "max_bodies_bytes", "retry_after"):
            if getattr(self, name) < 1:
                raise DlmError(f"{name} is {getattr(self, name)}: it takes at least 1")
        if self.stored_responses < 0 or self.stored_bytes < 0:
            raise DlmError("stored_responses and stored_bytes take 0 or more")
        if self.max_queue < 0:
            raise DlmError(f"max_queue is {self.max_queue}: it takes 0 or more requests")
        if not 0 <= self.reserved_slots < self.slots:
            raise DlmError(
                f"reserved_slots is {self.reserved_slots}: "
                f"it takes 0 to {self.slots - 1}, fewer than the slots"
            )
        for name in ("body_seconds", "keep_alive"):
            if not getattr(self, name) > 0:
                raise DlmError(f"{name} is {getattr(self, name)}: it takes more than 0 seconds")
        for i, host in enumerate(self.allowed_hosts):
            address = _address(host.removeprefix("[").removesuffix("]"))
            if not (_HOST.fullmatch(host) or isinstance(address, IPv6Address)):
                raise DlmError(
                    f"allowed_hosts[{i}] is {host[:80]!r}: it takes the name of a host without a "
                    "port, *.NAME for all names below one, or * for any"
                )
        if not self.names or not all(self.names):
            raise DlmError("names holds no name, or an empty one: it takes at least one name")
        if not all(self.api_keys):
            raise DlmError("api_keys holds an empty key: it would admit every client")
        for i, key in enumerate(self.api_keys):
            if not (key.isascii() and key.isprintable() and key == key.strip()):
                raise DlmError(
                    f"api_keys[{i}] cannot be sent in a header: it takes printable ASCII without "
                    "blanks around it"
                )


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
        given = _digest(key)
        valid = [hmac.compare_digest(given, one) for one in self._keys]
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
        given = request.headers.get("content-type", "")
        if given.partition(";")[0].strip().lower() != "application/json":
            found = f"Content-Type is {given[:80]!r}" if given else "Content-Type is missing"
            raise HTTPException(415, f"{found}: send `Content-Type: application/json`")

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """Receive a body, and count its bytes as held while the context is open.

        Raises 413 for a body that is too large, and 408 for one that does not arrive in time.
        If too many bytes are arriving in all, the body that began first raises `QueueFullError`, so
        that slow clients keep no others out; so does a large body if too many bytes are held.
        Raises `UnavailableError` while the server drains, and `ClientGoneError`.
        """
        raw = await self._received(request)
        if len(raw) >= LARGE and self._held + len(raw) > self._settings.max_bodies_bytes:
            raise QueueFullError("too much waits to be read: try again later")
        self._held += len(raw)
        try:
            yield raw
        finally:
            self._held -= len(raw)

    async def _received(self, request: Request) -> bytes:
        if self._draining:
            raise UnavailableError(_ENDING)
        parts, upload = list[bytes](), _Upload(asyncio.timeout(self._settings.body_seconds))
        try:
            async with upload.timeout:
                self._uploads[upload] = None
                async for part in request.stream():
                    self._take(upload, len(part))
                    parts.append(part)
        except ClientDisconnect as error:
            raise ClientGoneError from error
        except TimeoutError as error:
            if upload.crowded_out:
                raise QueueFullError("too much is being received: try again later") from error
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
    address = _address(host)
    named = host == "localhost" or host.endswith(".localhost")
    return named or (address is not None and address.is_loopback)


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address that `host` is; None if it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None
