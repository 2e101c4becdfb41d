"""Files of rows and of answers, and templates that make prompts of a row's fields.

Rows are read from JSON lines, CSV and Parquet. A row that cannot be read is still a row, with its
problem. Only an error that makes all later rows doubtful is an error of the file.

Answers are written as `Lines` of JSON. A killed run leaves whole lines and at most one that is cut
off; the next run removes that one and continues, if its settings are the same.
"""

import csv
import fcntl
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from io import UnsupportedOperation
from itertools import islice
from os import SEEK_END
from pathlib import Path
from shutil import copymode
from string import Formatter
from typing import Any

from dlm.errors import DlmError, RequestError

_INVALID_BYTE = re.compile("[\udc80-\udcff]")  # Python's form of bytes that are not UTF-8
TEXT = "text"  # column name of JSON lines that are texts


class InputError(DlmError):
    """File of rows that cannot be read, or lacks a column."""


@dataclass(frozen=True, slots=True)
class InputRow:
    number: int  # from 0, without blank lines and the header
    value: Any  # a dict by column; any JSON value in JSON lines
    problem: str | None = None  # reason that there is no value

    @property
    def fields(self) -> dict[str, Any]:
        """Values by column. Raises `RequestError` for a row that has none."""
        if self.problem is not None:
            raise RequestError(self.problem)
        if isinstance(self.value, str):
            return {TEXT: self.value}
        if not isinstance(self.value, dict):
            kind = type(self.value).__name__
            raise RequestError(f"the line must be an object or a text, got a JSON {kind}")
        return self.value


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a file, which may be read several times."""

    path: Path
    columns: tuple[str, ...]  # in JSON lines those of the first row that has any
    fixed: bool  # whether all rows have these columns
    read: Callable[[], Iterator[InputRow]]

    def need(self, column: str) -> None:
        """Raise `InputError` if no row has such a column."""
        if column in self.columns or not self.columns:
            return
        if self.fixed or not any(column in _fields(row) for row in self.read()):
            raise InputError(f"{self.path} has no column {column!r}: it has {self._listed}")

    def text_column(self) -> str:
        """Return the default column of texts: `prompt`, `text`, or the only one. Raises
        `InputError` if there are several others."""
        for name in ("prompt", TEXT, *self.columns[: len(self.columns) == 1]):
            if name in self.columns:
                return name
        if not self.columns and next(self.read(), None) is None:
            return TEXT  # without rows, any name will do
        if not self.columns:
            raise InputError(f"{self.path} has no row that can be read")
        raise InputError(
            f"{self.path} has neither a column prompt nor a column text: "
            f"say which holds the text, of {self._listed}"
        )

    def digest(self) -> str:
        """Return a digest of the file's bytes."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]

    @property
    def _listed(self) -> str:
        return ", ".join(self.columns)


@dataclass(frozen=True, slots=True)
class Rest:
    """Rows of a file that have no answer, which may be read several times. It is pickled to other
    processes."""

    read: Callable[[], Iterator[InputRow]]  # that of `Rows`
    total: int  # number of requested rows, from the first
    answered: frozenset[int]  # row numbers

    def __call__(self) -> Iterator[InputRow]:
        requested = islice(self.read(), self.total)
        return (row for row in requested if row.number not in self.answered)


def _fields(row: InputRow) -> dict[str, Any]:
    """Return the fields of a row; none if it cannot be read."""
    try:
        return row.fields
    except RequestError:
        return {}


def rows_of(path: Path) -> Rows:
    """Return the rows of a `.jsonl`, `.csv` or `.parquet` file. Raises `InputError` for another
    kind, a broken file or an invalid header, and `OSError` for a file that cannot be opened;
    reading the rows raises these too."""
    match path.suffix.lower():
        case ".jsonl":
            return _json_lines(path)
        case ".csv":
            return _csv(path)
        case ".parquet":
            return _parquet(path)
        case suffix:
            raise InputError(f"{path} must end in .jsonl, .csv or .parquet, got {suffix!r}")


def json_row(number: int, line: bytes) -> InputRow:
    """Return the row of a line of JSON; an error in it is the row's problem."""
    try:
        return InputRow(number, json.loads(line.decode()))
    except UnicodeDecodeError as error:
        return InputRow(number, None, f"the line is not UTF-8 text at byte {error.start}")
    except (ValueError, RecursionError) as error:
        return InputRow(number, None, f"the line is not JSON: {str(error)[:200]}")


def _json_lines(path: Path) -> Rows:
    def read() -> Iterator[InputRow]:
        with path.open("rb") as file:
            lines = (line for line in file if line.strip())
            for number, line in enumerate(lines):
                yield json_row(number, line.removeprefix(b"\xef\xbb\xbf"))

    first = next((row for row in read() if isinstance(row.value, dict | str)), None)
    return Rows(path, () if first is None else tuple(first.fields), False, read)


def _csv(path: Path) -> Rows:
    csv.field_size_limit(sys.maxsize)  # the default limit of a field is 128 KiB

    @contextmanager
    def reader() -> Iterator["csv.DictReader[str]"]:
        with path.open(encoding="utf-8-sig", newline="") as file:
            found = csv.DictReader(file, strict=True)
            try:
                yield found
            except csv.Error as error:
                raise InputError(f"{path}, line {found.reader.line_num}: {error}") from error
            except UnicodeDecodeError as error:
                problem = f"{path}, line {_invalid_line(path)}: it is not UTF-8 text"
                raise InputError(problem) from error

    def read() -> Iterator[InputRow]:
        with reader() as found:
            for number, fields in enumerate(found):
                yield _csv_row(number, fields)

    with reader() as found:
        columns = _distinct(path, found.fieldnames or ())
    return Rows(path, columns, True, read)


def _invalid_line(path: Path) -> int:
    """Return the number of the first line that is not UTF-8, from 1."""
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        return next(number for number, line in enumerate(file, 1) if _INVALID_BYTE.search(line))


def _csv_row(number: int, fields: dict[Any, Any]) -> InputRow:
    if None in fields:
        count = len(fields) - 1 + len(fields[None])
        problem = f"the row has {count} fields, and the header {len(fields) - 1}"
        return InputRow(number, None, problem)
    return InputRow(number, {name: value for name, value in fields.items() if value is not None})


def _parquet(path: Path) -> Rows:
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise InputError(
            f"{path} needs pyarrow, which is not installed: pip install 'dlm[parquet]'"
        ) from error

    @contextmanager
    def table() -> Iterator[Any]:
        with path.open("rb") as file:
            try:
                yield parquet.ParquetFile(file)
            except (arrow.ArrowException, OSError) as error:  # pyarrow raises both
                raise InputError(f"{path} is not readable as Parquet: {error}") from error

    def read() -> Iterator[InputRow]:
        number = 0
        with table() as found:
            for batch in found.iter_batches(batch_size=1024):
                for fields in batch.to_pylist():
                    yield InputRow(number, fields)
                    number += 1

    with table() as found:
        columns = _distinct(path, found.schema_arrow.names)
    return Rows(path, columns, True, read)


def _distinct(path: Path, names: Iterable[str]) -> tuple[str, ...]:
    found = tuple(names)
    duplicate = next((name for name in found if found.count(name) > 1), None)
    if duplicate is not None:
        raise InputError(f"{path} has two columns {duplicate!r}: their names must differ")
    if not found:
        raise InputError(f"{path} must have a header: it has no columns")
    return found


@dataclass(frozen=True, slots=True)
class Template:
    """Text with names of fields in braces; doubled braces are text. A whole name stands in braces:
    no part of a value is selected, and no format is applied."""

    parts: tuple[tuple[str, str | None], ...]  # text, and the field after it

    @classmethod
    def parse(cls, text: str) -> "Template":
        """Parse a template. Raises `RequestError` for unbalanced braces, or braces without a plain
        name."""
        parts = []
        try:
            for literal, name, form, conversion in Formatter().parse(text):
                if name == "" or form or conversion or "{" in (name or ""):
                    raise ValueError("braces hold the name of a field and nothing else")
                parts.append((literal, name))
        except ValueError as error:
            message = f"the template cannot be read: {error}; write {{{{ and }}}} for braces"
            raise RequestError(message) from error
        if not any(name for _, name in parts):
            raise RequestError("the template names no field, as in {text}: all rows would be alike")
        return cls(tuple(parts))

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields in the template."""
        return tuple(dict.fromkeys(name for _, name in self.parts if name is not None))

    @classmethod
    def column(cls, name: str) -> "Template":
        """Return a template of one field."""
        return cls((("", name),))

    def fill(self, fields: Mapping[str, Any]) -> str:
        """Return the text with values filled in; those that are no text are written as JSON. Raises
        `RequestError` for a missing field."""
        return "".join(
            literal + ("" if name is None else _text_at(name, fields))
            for literal, name in self.parts
        )


def _text_at(name: str, fields: Mapping[str, Any]) -> str:
    if name not in fields:
        raise RequestError(f"the row has no field {name!r}: it has {', '.join(fields) or 'none'}")
    value = fields[name]
    if value is None:
        raise RequestError(f"the row's field {name!r} is null")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


class LinesError(DlmError):
    """File that another run writes, or has written with other settings."""


def settings_path(path: Path) -> Path:
    """Return the file with the settings of the run that wrote `path`."""
    return path.with_name(f"{path.name}.settings.json")


class Lines:
    """File of JSON lines that no other process writes at the same time."""

    def __init__(self, path: Path, settings: dict[str, Any], take: Callable[[Any], None]):
        """`settings` are stored beside the file, with `.settings.json` after its name. `take` gets
        the value of each line that exists; for one that is no answer of a run it raises what `dict`
        or `int` would.

        Raises `LinesError`, and `OSError` with the file's name if it cannot write.
        """
        self._path, self._take = path, take
        self._new = not path.exists()
        self._settings = settings_path(path)
        try:
            self._file = path.open("a+b")
        except UnsupportedOperation as error:
            raise LinesError(f"{path} must be a file, got a pipe or a terminal") from error
        try:
            with self._named():
                self._resume(settings)
        except BaseException:
            self._file.close()
            raise

    def write(self, value: Any) -> None:
        """Write and flush."""
        with self._named():
            self._file.write(_line(value))
            self._file.flush()

    def close(self) -> None:
        with self._named():
            self._file.close()

    def abandon(self) -> None:
        """Remove the file and its settings if this run made it, and it is empty."""
        with self._named():
            if self._new and not self._file.seek(0, SEEK_END):
                self._path.unlink(missing_ok=True)
                self._settings.unlink(missing_ok=True)

    def in_order(self, key: Callable[[Any], int]) -> Iterator[bytes]:
        """Yield the lines in the order of `key`, a function of their values."""
        with self._named(), self._path.open("rb") as file:
            places, begin = [], 0
            for line in file:
                places.append((key(json.loads(line)), begin))
                begin += len(line)
            for _, begin in sorted(places):
                file.seek(begin)
                yield file.readline()

    def sort(self, key: Callable[[Any], int]) -> None:
        """Bring the lines into the order of `key`. Killed meanwhile, or after an error, the file is
        the one before."""
        path = self._path.resolve()  # a link stays one
        sorted_path = path.with_name(f"{path.name}.sorted")
        with self._named():
            try:
                with sorted_path.open("wb") as file:
                    file.writelines(self.in_order(key))
                copymode(path, sorted_path)
                sorted_path.replace(path)
            except BaseException:
                sorted_path.unlink(missing_ok=True)
                raise

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add the file's name to an `OSError`."""
        try:
            yield
        except OSError as error:
            name = error.filename or str(self._path)
            raise OSError(error.errno, error.strerror, name) from error

    def _resume(self, settings: dict[str, Any]) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when the process ends
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
        """Read the existing lines; a last one that was cut off is removed."""
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
    """Return a value as a line of JSON. Half a surrogate pair, which is invalid in UTF-8, is
    written as an escape. Values that JSON does not have, such as dates as names of rows, are
    written as texts."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text.encode("utf-8", "backslashreplace") + b"\n"
