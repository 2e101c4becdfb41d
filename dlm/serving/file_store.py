"""Files of clients on disk, and their records, by which a later server knows them.

Each client sees its own files alone. Their number and their bytes are bounded, and they expire.
This module knows no HTTP and no batches.
"""

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import Any

from pydantic import TypeAdapter

from dlm.errors import RequestError
from dlm.openai.body import Body, sendable
from dlm.openai.response_items import UnknownResponseError
from dlm.serving.records import StorageFullError, StoredRecords, disk_error

DAY = 86_400  # seconds
_SECONDS = 30 * DAY  # that a file is kept
_MOST_FILES = 200  # of a client
_MOST_OF_ALL = 10_000  # files of all clients
_LEAST_BYTES = 4096  # that a file counts, as on most disks
_RECORDED = ("client", "name", "purpose", "created", "expires", "size")


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
    counted: int = _LEAST_BYTES  # bytes of the store that it takes
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

    def record(self) -> dict[str, Any]:
        """Return what a later server has to know of the file, beside its content."""
        return {name: getattr(self, name) for name in _RECORDED}

    @staticmethod
    def of_record(directory: Path, id: str, record: Mapping[str, Any]) -> "StoredFile":
        """Return a file of an earlier server with what was written to it. Raises `LookupError`,
        `OSError`, and `ValueError` for content that lacks bytes or a value of another type."""
        fields = {name: record[name] for name in _RECORDED}
        file = _FILE.validate_python({**fields, "id": id, "path": directory / id})
        size = file.path.stat().st_size
        if size < file.size:
            raise ValueError(f"the file must have at least {file.size} bytes, got {size}")
        file.size, file.counted = size, max(_LEAST_BYTES, size)
        return file


_FILE = TypeAdapter(StoredFile)


@dataclass(slots=True)
class _Share:
    """Part of the store that one client has."""

    files: dict[str, StoredFile] = field(default_factory=dict)  # by id, the oldest first
    counted: int = 0  # bytes


class FileStore:
    """Files in a directory that nothing else writes. May be used by any thread."""

    def __init__(self, directory: Path, most_bytes: int, now: Callable[[], float] = time.time):
        """`most_bytes` is the size of all files together; one client may have half of it."""
        self._directory, self._most, self._now = directory, most_bytes, now
        self._files: dict[str, StoredFile] = {}  # by id
        self._shares: dict[str, _Share] = {}  # by client; none is empty
        self._counted = 0  # bytes of all files
        self._next_end = math.inf  # no file that nobody reads expires before
        self._lock = Lock()
        self._records = StoredRecords(directory, "file-")
        self._load()

    def add(
        self, client: str, name: str, purpose: str, content: bytes, seconds: int = _SECONDS
    ) -> StoredFile:
        """Store a file for `seconds`. Raises `StorageFullError`."""
        file = self._create(client, name, purpose, content, seconds)
        self.release(file)
        return file

    def create(self, client: str, name: str, purpose: str) -> StoredFile:
        """Return an empty file, which stays until it is released. A later server has it with what
        was written to it. Raises `StorageFullError`."""
        return self._create(client, name, purpose, b"", _SECONDS)

    def _create(
        self, client: str, name: str, purpose: str, content: bytes, seconds: int
    ) -> StoredFile:
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
            readers=1,
        )
        try:
            file.path.touch(exist_ok=False)
        except OSError as error:
            raise disk_error(error) from error
        try:
            with self._lock:
                self._expire()
                self._register(file)
        except StorageFullError:
            file.path.unlink(missing_ok=True)
            raise
        try:
            self.append(file, content)
            self._records.write(file.id, file.record)
        except BaseException:
            with self._lock:
                self._drop(file)
            raise
        return file

    def append(self, file: StoredFile, content: bytes) -> None:
        """Write to the end of a file, which no other thread does at the same time. Raises
        `StorageFullError`; the file is then as before."""
        counted = file.counted
        with self._lock:
            self._count(file, max(_LEAST_BYTES, file.size + len(content)))
        try:
            with file.path.open("ab") as opened:
                opened.write(content)
        except OSError as error:
            with suppress(OSError):
                os.truncate(file.path, file.size)
            with self._lock:
                self._count(file, counted)
            raise disk_error(error) from error
        file.size += len(content)

    def cut(self, file: StoredFile, size: int) -> None:
        """Remove what comes after the first `size` bytes of a file, which no other thread writes
        at the same time."""
        os.truncate(file.path, size)
        with self._lock:
            self._count(file, max(_LEAST_BYTES, size))
        file.size = size

    def get(self, client: str, id: str) -> StoredFile:
        """Return a file of a client. Raises `UnknownFileError`."""
        with self._lock:
            return self._get(client, id)

    def hold(self, client: str, id: str) -> StoredFile:
        """Return a file of a client, which stays until `release`; one that has expired, and that
        no other call has removed, stays too. Raises `UnknownFileError`."""
        with self._lock:
            file = self._find(client, id)
            file.readers += 1
            return file

    def release(self, file: StoredFile) -> None:
        """End what `hold` or `create` began."""
        with self._lock:
            file.readers -= 1
            if not file.readers:
                self._next_end = min(self._next_end, file.expires)

    def of(self, client: str) -> list[StoredFile]:
        """Return the files of a client, the newest first."""
        with self._lock:
            self._expire()
            share = self._shares.get(client)
            return [] if share is None else [*reversed(share.files.values())]

    def delete(self, client: str, id: str) -> None:
        """Delete a file. Raises `UnknownFileError`, and `RequestError` while a batch needs it."""
        with self._lock:
            file = self._get(client, id)
            if file.readers:
                raise RequestError(f"{id} must not be deleted while a batch needs it")
            self._drop(file)

    def _load(self) -> None:
        """Go on with the files of an earlier server, and delete those that it had not finished."""
        files = self._records.read(partial(StoredFile.of_record, self._directory))
        for file in sorted(files, key=lambda file: file.created):
            self._put(self._shares.get(file.client, _Share()), file)
            self._next_end = min(self._next_end, file.expires)
        for path in self._directory.glob("file-*"):
            if self._records.id.fullmatch(path.name) and not self._records.has(path.name):
                path.unlink()

    # The lock is held by the callers of all that follow.

    def _get(self, client: str, id: str) -> StoredFile:
        self._expire()
        return self._find(client, id)

    def _find(self, client: str, id: str) -> StoredFile:
        file = self._files.get(id)
        if file is None or file.client != client:
            raise UnknownFileError(f"there is no file {id!r:.60} here")
        return file

    def _register(self, file: StoredFile) -> None:
        """Count a new file. Raises `StorageFullError`."""
        share = self._shares.get(file.client, _Share())
        if len(share.files) >= _MOST_FILES:
            raise StorageFullError(
                f"files must be at most {_MOST_FILES} of a client: delete some first"
            )
        if len(self._files) >= _MOST_OF_ALL:
            raise StorageFullError(
                f"files must be at most {_MOST_OF_ALL} of all clients: try again later"
            )
        self._check_room(share, file.counted)
        self._put(share, file)

    def _put(self, share: _Share, file: StoredFile) -> None:
        self._shares[file.client] = share
        self._files[file.id] = share.files[file.id] = file
        share.counted += file.counted
        self._counted += file.counted

    def _count(self, file: StoredFile, counted: int) -> None:
        """Change what a file counts. Raises `StorageFullError`."""
        share = self._shares[file.client]
        if counted > file.counted:
            self._check_room(share, counted, file.counted)
        share.counted += counted - file.counted
        self._counted += counted - file.counted
        file.counted = counted

    def _check_room(self, share: _Share, counted: int, before: int = 0) -> None:
        """Raise `StorageFullError` unless a file that counted `before` may count `counted`."""
        room = before + min(self._most - self._counted, self._most // 2 - share.counted)
        if counted > room:
            raise StorageFullError(
                f"the file takes {counted} bytes, and the server has room for {max(0, room)}: "
                "delete files first"
            )

    def _drop(self, file: StoredFile) -> None:
        share = self._shares[file.client]
        del self._files[file.id], share.files[file.id]
        share.counted -= file.counted
        self._counted -= file.counted
        if not share.files:
            del self._shares[file.client]
        with suppress(OSError):
            self._records.delete(file.id)
            file.path.unlink()

    def _expire(self) -> None:
        """Forget files whose time is over and that nobody reads."""
        now = self._now()
        if now < self._next_end:
            return
        free = [file for file in self._files.values() if not file.readers]
        for file in free:
            if file.expires <= now:
                self._drop(file)
        self._next_end = min(
            (file.expires for file in free if file.expires > now), default=math.inf
        )
