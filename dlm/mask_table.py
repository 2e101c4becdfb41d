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

    def place(self, wanted: Sequence[tuple[Tensor, Sequence[int]]], link: Link) -> list[int]:
        """The rows here of rows of grammars' tables; new ones are sent, in one copy."""
        new = self._new(wanted)
        if self.count + sum(map(len, new.values())) > len(self.bitmask):
            self._begin_anew(sum(len(rows) for _, rows in wanted), link.device)
            new = self._new(wanted)
        if new:
            words = [table[list(rows), : self._words] for table, rows in new.items()]
            (sent,) = link.to_device(torch.cat(words))
            self.bitmask[self.count : self.count + len(sent)] = sent
        for table, rows in new.items():
            places = self._places.setdefault(table, {})
            places.update((row, self.count + i) for i, row in enumerate(rows))
            self.count += len(rows)
        return [place for table, rows in wanted for place in map(self._places[table].get, rows)]

    def _new(self, wanted: Sequence[tuple[Tensor, Sequence[int]]]) -> dict[Tensor, dict[int, None]]:
        """Rows that have no place, each once, by their table."""
        new: dict[Tensor, dict[int, None]] = {}
        for table, rows in wanted:
            known = self._places.get(table, ())
            here = {row: None for row in rows if row not in known}
            if here:
                new.setdefault(table, {}).update(here)
        return new

    def _begin_anew(self, rows: int, device: torch.device) -> None:
        """Forget all masks; there is room for as many as `rows`."""
        self._places.clear()
        self.count, rows = 0, max(self._rows, rows)
        if rows > len(self.bitmask):
            self.bitmask = torch.empty(rows, self._words, dtype=torch.int32, device=device)
