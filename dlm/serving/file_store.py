"""Files of clients, on disk while the server runs.

Each client sees its own files alone. Their number and their bytes are bounded, and they expire.
This module knows no HTTP and no batches.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import BinaryIO

from dlm.errors import RequestError
from dlm.openai.body import Body, sendable
from dlm.openai.response_items import UnknownResponseError

DAY = 86_400  # seconds
_SECONDS = 30 * DAY  # that a file is kept
_MOST_FILES = 200  # of a client


class StorageFullError(RequestError):
    """Refusal of bytes for which the store has no room."""


class UnknownFileError(UnknownResponseError):
    """Error for a file that the client does not have: an HTTP 404."""


@dataclass(slots=True, eq=False)
class StoredFile:
    """File of one client."""

    id: str
    client: str
    name: str
    purpose: str
    path: Path
    created: int  # Unix time
    expires: int
    size: int = 0  # bytes
    readers: int = 0  # batches that are reading or writing it: it stays

    def body(self) -> Body:
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.size,
            "created_at": self.created,
            "expires_at": self.expires,
            "filename": self.name,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


class FileStore:
    """Files in a directory that nothing else writes. May be used by any thread."""

    def __init__(self, directory: Path, most_bytes: int, now: Callable[[], float] = time.time):
        """`most_bytes` is the size of all files together; one client may have half of it."""
        self._directory, self._most, self._now = directory, most_bytes, now
        self._files: dict[str, StoredFile] = {}  # by id, the oldest first
        self._lock = Lock()

    def add(
        self, client: str, name: str, purpose: str, content: bytes, seconds: int = _SECONDS
    ) -> StoredFile:
        """Store a file for `seconds`. Raises `StorageFullError`."""
        file = self.create(client, name, purpose, seconds)
        try:
            with file.path.open("wb") as opened:
                self.append(file, opened, content)
        except BaseException:
            self._drop(file)
            raise
        return file

    def create(self, client: str, name: str, purpose: str, seconds: int = _SECONDS) -> StoredFile:
        """Return an empty file. Raises `StorageFullError` if the client has too many."""
        now = int(self._now())
        id = f"file-{token_hex(12)}"
        file = StoredFile(
            id=id,
            client=client,
            name=sendable(name),
            purpose=purpose,
            path=self._directory / id,
            created=now,
            expires=now + seconds,
        )
        with self._lock:
            self._expire()
            if sum(other.client == client for other in self._files.values()) >= _MOST_FILES:
                raise StorageFullError(
                    f"files must be at most {_MOST_FILES} of a client: delete some first"
                )
            self._files[id] = file
        file.path.touch()
        return file

    def append(self, file: StoredFile, opened: BinaryIO, content: bytes) -> None:
        """Write to the end of a file that is `opened`. Raises `StorageFullError`."""
        with self._lock:
            stored = sum(other.size for other in self._files.values())
            own = sum(other.size for other in self._files.values() if other.client == file.client)
            room = min(self._most - stored, self._most // 2 - own)
            if len(content) > room:
                raise StorageFullError(
                    f"the file takes {len(content)} bytes, and the server has room for "
                    f"{max(0, room)} more: delete files first"
                )
            file.size += len(content)
        opened.write(content)
        opened.flush()

    def get(self, client: str, id: str) -> StoredFile:
        """Return a file of a client. Raises `UnknownFileError`."""
        with self._lock:
            self._expire()
            file = self._files.get(id)
        if file is None or file.client != client:
            raise UnknownFileError(f"there is no file {id!r:.60} here")
        return file

    def of(self, client: str) -> list[StoredFile]:
        """Return the files of a client, the newest first."""
        with self._lock:
            self._expire()
            return [file for file in reversed(self._files.values()) if file.client == client]

    def delete(self, client: str, id: str) -> None:
        """Delete a file. Raises `UnknownFileError`, and `RequestError` while a batch needs it."""
        file = self.get(client, id)
        if file.readers:
            raise RequestError(f"{id} must not be deleted while a batch needs it")
        self._drop(file)

    def lines(self, file: StoredFile) -> Iterator[bytes]:
        """Yield the lines of a file that are not blank."""
        with file.path.open("rb") as opened:
            first = True
            for line in opened:
                text = line.removeprefix(b"\xef\xbb\xbf") if first else line
                first = False
                if text.strip():
                    yield text

    def _drop(self, file: StoredFile) -> None:
        with self._lock:
            self._files.pop(file.id, None)
        file.path.unlink(missing_ok=True)

    def _expire(self) -> None:
        """Forget files whose time is over; the lock is held."""
        now = self._now()
        for file in [file for file in self._files.values() if file.expires <= now]:
            if not file.readers:
                del self._files[file.id]
                file.path.unlink(missing_ok=True)
