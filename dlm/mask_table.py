"""The masks of all grammars in use, where the model is: a step sends only those that are new."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int32
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from dlm.link import Link

_ROWS = 1024  # masks; of 262,144 tokens, 32 MiB


class MaskTable:
    """Rows of packed bits, `words` to a row. When it is full it begins anew.

    A mask is known by its place in a grammar's table, a row of which never changes.
    """

    def __init__(self, words: int, rows: int = _ROWS):
        self._words, self._rows = words, rows
        self.count = 0  # rows that are in use
        self.bitmask: Int32[Tensor, "rows words"] = torch.empty(0, words, dtype=torch.int32)
        # By a grammar's table, and by the row of it: dict[Tensor, dict[int, int]].
        self._places: Any = WeakIdKeyDictionary()

    def place(self, wanted: Sequence[tuple[Tensor, int]], link: Link) -> list[int]:
        """The rows here of rows of grammars' tables; new ones are sent, in one copy."""
        new = self._new(wanted)
        if self.count + len(new) > len(self.bitmask):
            self._places.clear()
            self.count, new = 0, self._new(wanted)
            rows = max(self._rows, len(new))
            if rows > len(self.bitmask):
                self.bitmask = torch.empty(rows, self._words, dtype=torch.int32, device=link.device)
        if new:
            end = self.count + len(new)
            words = torch.stack([table[row, : self._words] for table, row in new])
            (self.bitmask[self.count : end],) = link.to_device(words)
            for place, (table, row) in enumerate(new, start=self.count):
                self._places.setdefault(table, {})[row] = place
            self.count = end
        return [self._places[table][row] for table, row in wanted]

    def _new(self, wanted: Sequence[tuple[Tensor, int]]) -> list[tuple[Tensor, int]]:
        """Those that have no place, each once."""
        found = {
            (id(table), row): (table, row)
            for table, row in wanted
            if row not in self._places.get(table, ())
        }
        return list(found.values())
