"""Masks of all grammars in use, on the model's device: a step sends only new ones.

Also decides which rows of a step's logits a constraint changes. This module knows the results of a
vocabulary pass, and no canvas.
"""

from collections.abc import Sequence
from operator import index
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int32, Int64
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from dlm.grammar import Guidance, Row
from dlm.grammar.masks import tokens_in
from dlm.kernels.vocab_rows import VocabPass
from dlm.logits.canvas_logits import CANDIDATES, DeviceCopies

_ROWS = 1024  # masks: 32 MiB for 262,144 tokens


class MaskTable:
    """Table of packed bits, `words` to a row, which begins anew when it is full. A mask is
    identified by its row in a grammar's table: such a row never changes."""

    def __init__(self, words: int, rows: int = _ROWS):
        self._words, self._rows = words, rows
        self.count = 0  # rows in use
        self.age = 0  # how often it began anew
        self.bitmask: Int32[Tensor, "rows words"] = torch.empty(0, words, dtype=torch.int32)
        # By a grammar's table and its row
        self._places: Any = WeakIdKeyDictionary()

    def reserve(self, device: torch.device) -> None:
        """Allocate the table now, before the rest of the device's memory is divided."""
        if not len(self.bitmask):
            self._begin_anew(0, device)

    def place(
        self, grammar_rows: Sequence[tuple[Tensor, Sequence[int]]], copies: DeviceCopies
    ) -> list[int]:
        """Return the rows of this table for rows of grammars' tables; new ones are sent in one
        copy."""
        new = self._new(grammar_rows)
        if self.count + sum(map(len, new.values())) > len(self.bitmask):
            self._begin_anew(sum(len(rows) for _, rows in grammar_rows), copies.device)
            new = self._new(grammar_rows)
        if new:
            words = [table[list(rows), : self._words] for table, rows in new.items()]
            (sent,) = copies.to_device(torch.cat(words))
            self.bitmask[self.count : self.count + len(sent)] = sent
        for table, rows in new.items():
            places = self._places.setdefault(table, {})
            places.update((row, self.count + i) for i, row in enumerate(rows))
            self.count += len(rows)
        return [
            place for table, rows in grammar_rows for place in map(self._places[table].get, rows)
        ]

    def _new(
        self, grammar_rows: Sequence[tuple[Tensor, Sequence[int]]]
    ) -> dict[Tensor, dict[int, None]]:
        """Return the rows that are not in this table, each once, by their own table."""
        new: dict[Tensor, dict[int, None]] = {}
        for table, rows in grammar_rows:
            places = self._places.get(table, ())
            missing = {row: None for row in rows if row not in places}
            if missing:
                new.setdefault(table, {}).update(missing)
        return new

    def _begin_anew(self, rows: int, device: torch.device) -> None:
        """Drop all masks, and make room for at least `rows`."""
        self._places.clear()
        self.count, self.age, rows = 0, self.age + 1, max(self._rows, rows)
        if rows > len(self.bitmask):
            self.bitmask = torch.empty(rows, self._words, dtype=torch.int32, device=device)


_UNNOTICED = 1e-6  # probability that a mask may forbid without effect: at most 3e-5 nats of entropy


def checked_rows(guidance: Guidance, length: int, vocab_size: int) -> np.ndarray:
    """Return `guidance.rows` as an array: for each position a row of `guidance.bitmask`, or ~token.
    Raises `ValueError` for guidance that does not fit a canvas of `length` positions."""
    if len(guidance.guess) != length:
        raise ValueError(f"a guess of {len(guidance.guess)} tokens for {length} positions")
    if not 0 <= guidance.suspect <= length:
        raise ValueError(f"position {guidance.suspect} of {length} is suspect")
    rows, masks = np.asarray(guidance.rows, dtype=np.int64), 0
    if guidance.bitmask is not None:
        (masks, words), least = guidance.bitmask.shape, -(-vocab_size // 32)
        if guidance.bitmask.dtype != torch.int32 or words < least:
            raise ValueError(
                f"a bitmask has {least} words of int32 for {vocab_size} tokens; "
                f"got {words} of {guidance.bitmask.dtype}"
            )
        if guidance.refusal is not None:
            at, mask = map(index, guidance.refusal)
            if not (0 <= at < length and 0 <= mask < masks):
                raise ValueError(f"position {at} of {length} is refused by mask {mask} of {masks}")
    if len(rows) > length:
        raise ValueError(f"{len(rows)} masks for {length} positions")
    if len(rows) and not (rows.min() >= -vocab_size and rows.max() < masks):
        raise ValueError(
            f"rows are 0 to {masks - 1}, or ~token down to {-vocab_size}, "
            f"got {rows.min()} to {rows.max()}"
        )
    return rows


def row_at(guidance: Guidance, position: int) -> Row:
    """Return what `guidance` allows at `position`."""
    if position >= len(guidance.rows):
        return None
    row = int(guidance.rows[position])
    if row < 0:
        return ~row
    words = guidance.bitmask
    return None if words is None else words[row].numpy().view(np.uint32)


def is_forced(row: Row) -> bool:
    """Return whether a row allows a single token."""
    return isinstance(row, int) or (row is not None and len(tokens_in(row)) == 1)


class MaskedRows(NamedTuple):
    """Rows of a pass under masks of one table."""

    rows: Int64[np.ndarray, " n"]
    bitmask: Int32[Tensor, "masks words"]
    masks: Int64[np.ndarray, " n"]  # rows of `bitmask`

    def allow(
        self, at: Int64[np.ndarray, " m"], tokens: Int64[np.ndarray, "m K"]
    ) -> Bool[np.ndarray, "m K"]:
        """Return which of `tokens` the masks of the rows `at` allow."""
        words = self.bitmask.numpy().view(np.uint32)[self.masks[at, None], tokens >> 5]
        return (words >> (tokens & 31).astype(np.uint32) & 1).astype(bool)


def changed_by_masks(
    results: VocabPass, canvases: Sequence[MaskedRows]
) -> Bool[np.ndarray, " rows"]:
    """Return which rows of a pass change under their masks, for the rows of all `canvases`. A row
    changes if its drawn token or a listed one is forbidden, or if too much is not listed."""
    rows = np.concatenate([canvas.rows for canvas in canvases])
    above = results.above.numpy()[rows]
    changed = (above > CANDIDATES) | (results.tail.numpy()[rows] > _UNNOTICED)
    at = np.flatnonzero(~changed)
    lists = results.ids.numpy()[rows[at], : int(above[at].max(initial=0))]
    tokens = np.column_stack((results.draw.numpy()[rows[at]], lists))
    counted = np.arange(tokens.shape[1]) <= above[at, None]
    ends = np.cumsum([len(canvas.rows) for canvas in canvases])
    begin, offset = 0, 0
    for canvas, last, end in zip(canvases, ends.tolist(), np.searchsorted(at, ends), strict=True):
        some = slice(begin, end)
        allowed = canvas.allow(at[some] - offset, tokens[some])
        changed[at[some]] = (counted[some] & ~allowed).any(1)
        offset, begin = last, end
    return changed


def alone(results: VocabPass, guess: Int64[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Return which rows of a pass list and draw their token of `guess` alone: no mask that allows
    it changes them. Most rows do."""
    drawn = results.draw.numpy() == guess
    return drawn & certain(results, slice(None), guess)


def certain(results: VocabPass, rows: np.ndarray | slice, tokens: np.ndarray) -> np.ndarray:
    """Return which of `rows` of a pass take only their token of `tokens` even without a mask."""
    one = (results.above.numpy()[rows] == 1) & (results.tail.numpy()[rows] <= _UNNOTICED)
    return one & (results.argmax.numpy()[rows] == tokens)
