"""The masks of all grammars in use, where the model is: a step sends only those that are new.

Which rows of a step's logits a constraint's guidance changes, and by which masks.

Knows what a vocabulary pass listed of each row, and no canvas.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int32
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from dlm.grammar import Guidance
from dlm.kernels.vocab_rows import VocabPass
from dlm.logits.canvas_logits import CANDIDATES, DeviceCopies

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

    def place(
        self, wanted: Sequence[tuple[Tensor, Sequence[int]]], link: DeviceCopies
    ) -> list[int]:
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


_UNMOVED = 1e-6  # probability that a mask may forbid unnoticed: at most 3e-5 nats of entropy


def checked_rows(read: Guidance, length: int, vocab_size: int) -> np.ndarray:
    """Return `read.rows` as an array: a row of `read.bitmask`, or ~token, for each position.

    Raises `ValueError` for masks that do not fit a canvas of `length` positions.
    """
    if read.bitmask is None:
        return np.empty(0, dtype=np.int64)
    (M, words), least = read.bitmask.shape, -(-vocab_size // 32)
    rows = np.asarray(read.rows, dtype=np.int64)
    if read.bitmask.dtype != torch.int32 or words < least:
        raise ValueError(
            f"a bitmask has {least} words of int32 for {vocab_size} tokens; "
            f"got {words} of {read.bitmask.dtype}"
        )
    if len(rows) > length:
        raise ValueError(f"{len(rows)} masks for {length} positions")
    if len(rows) and not (rows.min() >= -vocab_size and rows.max() < M):
        raise ValueError(
            f"rows are 0 to {M - 1}, or ~token down to {-vocab_size}, "
            f"got {rows.min()} to {rows.max()}"
        )
    return rows


def moved(found: VocabPass, rows: np.ndarray, words: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Return which of `rows` of a pass change under their masks, rows of `words`.

    A row does if what was drawn or is listed is forbidden, or too much is not listed.
    """
    above, tail, draw = (one.numpy()[rows] for one in (found.above, found.tail, found.draw))
    few = above <= CANDIDATES
    most = int(above[few].max(initial=0))
    tokens = np.concatenate((draw[:, None], found.ids.numpy()[rows, :most]), axis=1)
    allowed = words[masks[:, None], tokens >> 5] >> (tokens & 31).astype(np.uint32) & 1
    there = np.arange(most + 1) <= above[:, None]
    return ~few | (tail > _UNMOVED) | ((allowed == 0) & there).any(1)


def certain(found: VocabPass, rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Return which of `rows` of a pass take nothing but their one token of `tokens` as they are."""
    alone = (found.above.numpy()[rows] == 1) & (found.tail.numpy()[rows] <= _UNMOVED)
    return alone & (found.argmax.numpy()[rows] == tokens)
