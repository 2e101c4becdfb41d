"""A file of JSON, a line each, that goes on where a run of the same settings was stopped.

A run that is killed leaves whole lines and at most one that is cut off. The next run takes that one
away and goes on, if its settings are the same.
"""

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import UnsupportedOperation
from pathlib import Path
from typing import Any

from dlm.errors import DlmError


class LinesError(DlmError):
    """A file that another run writes, or has written with other settings."""


class Lines:
    """A file that nobody else writes at the time."""

    def __init__(self, path: Path, settings: dict[str, Any], take: Callable[[Any], None]):
        """The settings are in a file beside it, `.settings.json` behind its name. `take` is given
        what the file's lines say; what is none of a run, it refuses as a `dict` or `int` would.

        Raises `LinesError`, and `OSError`, which names the file, where it cannot write.
        """
        self._path, self._take = path, take
        self._settings = path.with_name(f"{path.name}.settings.json")
        try:
            self._file = path.open("a+b")
        except UnsupportedOperation as error:
            raise LinesError(f"{path} is a pipe or a terminal: it takes a file") from error
        try:
            with self._named():
                self._resume(settings)
        except BaseException:
            self._file.close()
            raise

    def write(self, value: Any) -> None:
        """It is in the file when this returns."""
        with self._named():
            self._file.write(_line(value))
            self._file.flush()

    def close(self) -> None:
        with self._named():
            self._file.close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """An error of the system says which file it is about."""
        try:
            yield
        except OSError as error:
            name = error.filename or str(self._path)
            raise OSError(error.errno, error.strerror, name) from error

    def _resume(self, settings: dict[str, Any]) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given up by whatever ends it
        except BlockingIOError as error:
            raise LinesError(f"another run writes {self._path}: wait, or take another") from error
        if self._file.tell():
            self._compare(settings)
            self._read()
        else:
            new = self._settings.with_suffix(".new")
            new.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
            new.replace(self._settings)

    def _compare(self, settings: dict[str, Any]) -> None:
        try:
            before = {} | json.loads(self._settings.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError, TypeError) as error:
            raise LinesError(
                f"{self._path} is there, without the settings of a run in {self._settings.name}: "
                "take another file"
            ) from error
        for name in before | settings:
            was, now = before.get(name), settings.get(name)
            if was != now:
                raise LinesError(
                    f"{self._path} has answers with {name} {was!r}, not {now!r}: "
                    "take another file, or remove this one"
                )

    def _read(self) -> None:
        """The lines that are there; one that a kill cut short goes."""
        self._file.seek(0)
        end = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                self._take(json.loads(line))
            except (ValueError, TypeError, LookupError) as error:
                raise LinesError(f"{self._path}, line {number}: no answer of a run") from error
            end += len(line)
        self._file.truncate(end)
        self._file.seek(end)


def _line(value: Any) -> bytes:
    """Half a surrogate pair, which JSON may hold and UTF-8 may not, is written as JSON's escape;
    dates and other names of rows that JSON does not know are written as texts."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text.encode("utf-8", "backslashreplace") + b"\n"
