"""Who may ask, and how much: keys, and bodies that end."""

import asyncio
import hmac
from hashlib import sha256

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from dlm.errors import QueueFullError
from dlm.serving.client import ClientGoneError
from dlm.serving.settings import Settings


class Guard:
    """One of a server. Raises `HTTPException`."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._receiving = 0  # bytes
        self._keys = [_digest(key) for key in settings.api_keys]

    async def check_key(self, request: Request) -> None:
        """401 without a key that opens. How long it takes tells nothing of the keys."""
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        given = _digest(key.strip() if kind.lower() == "bearer" else "")
        right = [hmac.compare_digest(given, one) for one in self._keys]
        if self._keys and not any(right):
            wrong = "Incorrect API key provided" if key else "An API key is missing"
            said = f"{wrong}: send it as `Authorization: Bearer KEY`"
            raise HTTPException(401, said, {"WWW-Authenticate": "Bearer"})

    async def body(self, request: Request) -> bytes:
        """413 for one that is too large, 408 for one that does not arrive. Raises `QueueFullError`
        where too much is being received at once, `ClientGoneError`."""
        most, parts, size = self._settings.max_body_bytes, list[bytes](), 0
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                async for part in request.stream():
                    size += len(part)
                    self._receiving += len(part)
                    if size > most:
                        raise HTTPException(413, f"the body has more than {most} bytes")
                    if self._receiving > self._settings.max_bodies_bytes:
                        raise QueueFullError("too much is being received: try again later")
                    parts.append(part)
        except ClientDisconnect as error:
            raise ClientGoneError from error
        except TimeoutError as error:
            raise HTTPException(408, "the body did not arrive in time") from error
        finally:
            self._receiving -= size
        return b"".join(parts)


def _digest(key: str) -> bytes:
    return sha256(key.encode()).digest()
