"""Records of a server that a later one reads: small JSON objects in files of their own.

A record is replaced as a whole, so that a crash leaves the old one or the new one. This module does
not know what they are about.
"""

import fcntl
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from dlm.errors import DlmError, RequestError

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
_LOCK = ".lock"  # name of the file that a running server locks


class StorageFullError(RequestError):
    """Refusal of bytes for which the store has no room."""


class StoredRecords:
    """Records whose ids begin with `prefix`, in a directory. May be used by any thread."""

    def __init__(self, directory: Path, prefix: str):
        self.directory = directory
        self.id = re.compile(re.escape(prefix) + "[0-9a-f]{24}")
        self._lock = Lock()
        for path in directory.glob("*.new"):
            if self.id.fullmatch(path.stem):
                with suppress(OSError):
                    path.unlink()  # a crash came while it was written

    def write(self, id: str, record: Callable[[], dict[str, Any]]) -> None:
        """Write what `record` returns; the last call has the newest. Raises `StorageFullError`."""
        path, new = self._path(id), self._path(id).with_suffix(".new")
        try:
            with self._lock:
                with new.open("w", encoding="utf-8") as opened:
                    json.dump(record(), opened)
                    opened.flush()
                    os.fsync(opened.fileno())
                new.replace(path)
        except OSError as error:
            raise disk_error(error) from error

    def read(self, make: Callable[[str, dict[str, Any]], T]) -> list[T]:
        """Return what `make` makes of ids and records, the one that was written first before all
        others. One that is damaged or has another version's form is logged and left."""
        made = list[T]()
        paths = [path for path in self.directory.glob("*.json") if self.id.fullmatch(path.stem)]
        for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns):
            try:
                made.append(make(path.stem, {} | json.loads(path.read_text(encoding="utf-8"))))
            except (OSError, ValueError, TypeError, LookupError, DlmError) as error:
                _LOG.warning("%s cannot be read, and is left as it is: %r", path, error)
        return made

    def has(self, id: str) -> bool:
        return self._path(id).exists()

    def delete(self, id: str) -> None:
        self._path(id).unlink(missing_ok=True)

    def _path(self, id: str) -> Path:
        return self.directory / f"{id}.json"


@contextmanager
def owned(directory: Path) -> Iterator[None]:
    """Make a directory unless it exists, and keep other servers out of it in the context. Raises
    `DlmError`."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise DlmError(f"the directory of files must be writable: {error}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when the process ends
        except BlockingIOError as error:
            raise DlmError(f"{directory} must be of one server, and another one uses it") from error
        except OSError as error:
            raise DlmError(f"{directory} must be on a disk with locks: {error}") from error
        yield
    finally:
        os.close(lock)


def disk_error(error: OSError) -> StorageFullError:
    return StorageFullError(f"the server cannot write the file to its disk: {error.strerror}")
