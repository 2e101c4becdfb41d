"""Answers on disk, and which rows have one."""

from pathlib import Path
from typing import Any

from dlm.batch.batch import Answer, Form
from dlm.batch.lines import Lines


class Output:
    """A file of answers, which nobody else writes at the time."""

    def __init__(self, path: Path, settings: dict[str, Any], form: Form):
        """Raises `LinesError` where answers of other settings are there, and `OSError`."""
        self.done, self.failed = set[int](), 0
        self._form = form
        self._lines = Lines(path, settings, self._count)

    def write(self, answer: Answer) -> None:
        """It is in the file when this returns."""
        self._lines.write(answer)
        self._count(answer)

    def close(self) -> None:
        self._lines.close()

    def _count(self, answer: Answer) -> None:
        self.done.add(self._form.row_of(answer))
        self.failed += answer["error"] is not None
