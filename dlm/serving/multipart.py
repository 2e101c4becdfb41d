"""Bodies of the type `multipart/form-data`, in which clients upload files.

A body is in memory already and its size is bounded, so it is split as a whole.
"""

import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from dlm.errors import RequestError

_BOUNDARY = re.compile(r'boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_DISPOSITION = re.compile(rb"content-disposition:[ \t]*form-data[ \t]*(?=;|$)", re.IGNORECASE)
_PARAMETER = re.compile(
    rb';[ \t]*([a-z*]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))[ \t]*', re.IGNORECASE
)
_ESCAPED = re.compile(rb'\\(["\\])')
_UTF_8 = re.compile(rb"utf-8'[a-z0-9-]*'", re.IGNORECASE)  # before a name that is encoded
_MOST_PARTS = 16
_MOST_HEADERS = 4096  # bytes before a part's content


@dataclass(frozen=True, slots=True)
class FormPart:
    """Field of a form, or a file in it."""

    content: bytes
    filename: str | None = None  # None: it is no file

    @property
    def text(self) -> str:
        """Content of a field. Raises `RequestError`."""
        try:
            return self.content.decode()
        except UnicodeDecodeError as error:
            raise RequestError("a field of a form must be UTF-8 text") from error


def form_parts(content_type: str, body: bytes) -> dict[str, FormPart]:
    """Return the parts of a form by name. Raises `RequestError`."""
    kind = content_type.partition(";")[0].strip().lower()
    boundary = _BOUNDARY.search(content_type)
    if kind != "multipart/form-data" or boundary is None:
        raise RequestError(
            f"the body must be multipart/form-data with a boundary, got {content_type[:80]!r}"
        )
    mark = b"--" + (boundary[1] or boundary[2]).encode("latin-1", "replace")
    start, *pieces = body.split(mark, _MOST_PARTS + 2)
    if len(pieces) > _MOST_PARTS + 1:
        raise RequestError(f"the form must have at most {_MOST_PARTS} parts")
    if start or not pieces or not pieces[-1].startswith(b"--"):
        raise RequestError("the form must begin and end with its boundary: it was cut off")
    parts: dict[str, FormPart] = {}
    for part in pieces[:-1]:
        head, separator, content = part.partition(b"\r\n\r\n")
        if not separator or len(head) > _MOST_HEADERS or not content.endswith(b"\r\n"):
            raise RequestError("a part of the form must have headers, an empty line and content")
        name, filename = _names(head)
        parts[name] = FormPart(content[:-2], filename)
    return parts


def _names(head: bytes) -> tuple[str, str | None]:
    """Return the name of a part with such headers, and that of its file. Raises `RequestError`."""
    values: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n"):
        if (kind := _DISPOSITION.match(line)) is not None:
            for parameter in _PARAMETER.finditer(line, kind.end()):
                name, quoted, plain = parameter.groups()
                value = plain if quoted is None else _ESCAPED.sub(rb"\1", quoted)
                values.setdefault(name.lower(), value)
    if b"name" not in values:
        raise RequestError("a part of the form must have a name")
    filename = values.get(b"filename")
    if (encoded := values.get(b"filename*")) is not None:
        if (start := _UTF_8.match(encoded)) is None:
            raise RequestError(f"filename* of a form must be UTF-8, got {encoded[:40]!r}")
        filename = unquote_to_bytes(encoded[start.end() :])
    name = values[b"name"].decode("utf-8", "replace")
    return name, None if filename is None else filename.decode("utf-8", "replace")
