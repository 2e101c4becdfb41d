"""Bodies of the type `multipart/form-data`, in which clients upload files.

A body is in memory already and its size is bounded, so it is split as a whole.
"""

import re
from dataclasses import dataclass

from dlm.errors import RequestError

_BOUNDARY = re.compile(r'boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_NAME = re.compile(rb'(?:^|[;\s])name="([^"\r\n]*)"', re.IGNORECASE)
_FILE = re.compile(rb'(?:^|[;\s])filename="([^"\r\n]*)"', re.IGNORECASE)
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
        name, file = _NAME.search(head), _FILE.search(head)
        if name is None:
            raise RequestError("a part of the form must have a name")
        parts[name[1].decode("utf-8", "replace")] = FormPart(
            content[:-2], None if file is None else file[1].decode("utf-8", "replace")
        )
    return parts
