"""Rows of a batch's input file, each of which is read when its turn comes.

A check of the whole file notes where its rows are. Both run in threads: a file may be large.
"""

from array import array
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

from dlm.batch.rows import InputRow
from dlm.errors import RequestError
from dlm.openai.batch import BatchLines
from dlm.openai.body import parse_json

_MOST_ROWS = 50_000  # as OpenAI has it
_PIECE_ROWS = 256  # at most in one piece
_PIECE_BYTES = 1 << 18  # after which a piece ends
_BOM = b"\xef\xbb\xbf"


class BatchInput:
    """Rows of one file."""

    def __init__(self, path: Path):
        self._path = path
        self._starts, self._sizes = array("Q"), array("Q")  # of the rows, in bytes
        self._stopped = False

    def check(self, form: BatchLines) -> None:
        """Find all rows. Raises `RequestError` for too many, for none, and for two with one
        `custom_id`, and `CancelledError` if it is stopped by another thread."""
        form.check(self._rows())
        if not self._starts:
            raise RequestError("the file must have at least one row, and has none")

    def stop(self) -> None:
        """Let a check that is running end at its next line."""
        self._stopped = True

    def __len__(self) -> int:
        """Number of rows, once they have been checked."""
        return len(self._starts)

    def size(self, number: int) -> int:
        """Return the number of bytes of a row."""
        return self._sizes[number]

    def row(self, number: int) -> InputRow:
        """Return a row that `check` has found; an error in it is the row's problem."""
        with self._path.open("rb") as opened:
            opened.seek(self._starts[number])
            return _row(number, opened.read(self._sizes[number]))

    def pieces(self) -> Iterator[list[InputRow]]:
        """Read all rows once, in order, in pieces of bounded work, which may be empty. No check
        needs to be before. Raises `RequestError` for too many rows."""
        piece, size = list[InputRow](), 0
        for number, _, text in self._lines():
            if text.strip():
                piece.append(_row(number, text))
            size += len(text)
            if len(piece) == _PIECE_ROWS or size >= _PIECE_BYTES:
                yield piece
                piece, size = [], 0
        yield piece

    def _rows(self) -> Iterator[InputRow]:
        """Read all rows, and note where they are."""
        for number, start, text in self._lines():
            if self._stopped:
                raise CancelledError
            if text.strip():
                self._starts.append(start)
                self._sizes.append(len(text))
                yield _row(number, text)

    def _lines(self) -> Iterator[tuple[int, int, bytes]]:
        """Read all lines, blank ones too: the number of the row that is in the line or comes next,
        the line's start in bytes, and its text. Raises `RequestError` for too many rows."""
        number = start = 0
        with self._path.open("rb") as opened:
            for line in opened:
                text = line.removeprefix(_BOM) if not start else line
                is_row = bool(text.strip())
                if is_row and number >= _MOST_ROWS:
                    raise RequestError(f"the file must have at most {_MOST_ROWS} rows")
                yield number, start + len(line) - len(text), text
                number += is_row
                start += len(line)


def _row(number: int, line: bytes) -> InputRow:
    try:
        return InputRow(number, parse_json("the line", line))
    except RequestError as error:
        return InputRow(number, None, str(error))
