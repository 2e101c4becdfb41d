"""Who may ask, and how much: keys, and bodies that are JSON and end."""

import asyncio
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from dlm.errors import QueueFullError, UnavailableError
from dlm.serving.client import ClientGoneError
from dlm.serving.connections import network_of
from dlm.serving.settings import LARGE, Settings

_ENDING = "the server is shutting down"
CLIENT = "dlm.client"  # of a scope: the client's name, where another process has found it


@dataclass(eq=False, slots=True)
class _Upload:
    """A body on its way."""

    timeout: asyncio.Timeout
    size: int = 0  # bytes that have arrived
    crowded_out: bool = False


class Guard:
    """One of a server. Raises `HTTPException`."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._uploads: dict[_Upload, None] = {}  # in the order in which they began
        self._receiving = 0  # bytes
        self._held = 0  # bytes that have arrived and are being read
        self._draining = False
        self._keys = [_digest(key) for key in settings.api_keys]

    async def check_key(self, request: Request) -> None:
        """401 without a key that opens. How long it takes tells nothing of the keys."""
        sent, key = _key(request)
        given = _digest(key)
        right = [hmac.compare_digest(given, one) for one in self._keys]
        if self._keys and not any(right):
            wrong = "Incorrect API key provided" if sent else "An API key is missing"
            said = f"{wrong}: send it as `Authorization: Bearer KEY`"
            raise HTTPException(401, said, {"WWW-Authenticate": "Bearer"})

    def client(self, request: Request) -> str:
        """Name of the client that a request is from, among whom slots go round: its key's digest,
        or without keys the network that it comes from."""
        if (name := request.scope.get(CLIENT)) is not None:
            return name
        if self._keys:
            return _digest(_key(request)[1]).hex()
        return network_of(request.client.host if request.client else None) or ""

    def drain(self) -> None:
        """Refuse bodies from now on, those too that are arriving."""
        self._draining = True
        for upload in list(self._uploads):
            with suppress(RuntimeError):  # its own time is over
                upload.timeout.reschedule(0)

    async def check_type(self, request: Request) -> None:
        """415 for a body that is not said to be JSON: any web page may have a browser send one of
        another type, and only JSON makes the browser ask first (`allowed_origins`)."""
        given = request.headers.get("content-type", "")
        if given.partition(";")[0].strip().lower() != "application/json":
            said = f"Content-Type is {given[:80]!r}" if given else "Content-Type is missing"
            raise HTTPException(415, f"{said}: send `Content-Type: application/json`")

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """For as long as it is read. 413 for one that is too large, 408 for one that does not
        arrive. Where too much is being received at once, the one that has taken longest raises
        `QueueFullError`, so that slow ones keep nobody out; and so does a large one where too much
        waits to be read. Raises `UnavailableError` while the server drains, `ClientGoneError`."""
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
        """Bytes have arrived."""
        upload.size += size
        self._receiving += size
        most = self._settings.max_body_bytes
        if upload.size > most:
            raise HTTPException(413, f"the body has more than {most} bytes")
        if self._receiving > self._settings.max_bodies_bytes and self._uploads:
            longest = next(iter(self._uploads))
            longest.crowded_out = True
            with suppress(RuntimeError):  # its own time is over
                longest.timeout.reschedule(0)
            self._drop(longest)

    def _drop(self, upload: _Upload) -> None:
        self._receiving -= upload.size
        upload.size = 0
        self._uploads.pop(upload, None)


def _key(request: Request) -> tuple[bool, str]:
    """Whether anything was sent as a key, and the key."""
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    return bool(key), key.strip() if kind.lower() == "bearer" else ""


def _digest(key: str) -> bytes:
    return sha256(key.encode()).digest()
