"""Which rows of a step's logits a constraint's guidance changes, and by which masks.

Knows what a vocabulary pass listed of each row, and no canvas.
"""

import numpy as np
import torch

from dlm.grammar import Guidance
from dlm.kernels.vocab_rows import VocabPass
from dlm.logits import CANDIDATES

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
