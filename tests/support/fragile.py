"""Workers without a model, which end where a row says so."""

import os
import signal
from collections.abc import Iterator
from typing import Any

from dlm.batch.rows import InputRow


class Fragile:
    """Double of a `Batch`: it answers a row by its value, in the next step."""

    has_capacity = True

    def __init__(self):
        self._rows: list[Any] = []

    @property
    def busy(self) -> bool:
        return bool(self._rows)

    def add(self, row: Any) -> None:
        self._rows.append(row)

    def step(self) -> list[tuple[int, dict[str, Any]]]:
        """Ends the process before it answers anything, if one of its rows is "kill"."""
        if any(row.value == "kill" for row in self._rows):
            os.kill(os.getpid(), signal.SIGKILL)
        ended = [(row.number, {"answer": row.value, "error": None}) for row in self._rows]
        self._rows = []
        return ended

    def close(self) -> None:
        pass


def start() -> Any:
    return Fragile()


def refuse() -> Any:
    raise ValueError("no such model")


def vanish() -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def torn() -> Iterator[InputRow]:
    """Rows of a file that cannot be read to its end."""
    yield from (InputRow(number, str(number)) for number in range(20))
    raise OSError("the disk is gone")
