"""Masks and guidances in forms that tests can compare."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dlm.grammar import Guidance, masks


def rows_of(guidance: Guidance) -> Tensor:
    """Return the tokens that each trusted position allows, as packed bits `[trusted, words]`.
    The guess is checked to be one of them everywhere."""
    assert guidance.bitmask is not None
    rows = torch.zeros(len(guidance.rows), guidance.bitmask.shape[1], dtype=torch.int32)
    for position, row in enumerate(guidance.rows):
        if row >= 0:
            rows[position] = guidance.bitmask[row]
        else:
            rows[position, ~row // 32] = np.uint32(1 << ~row % 32).astype(np.int32).item()
    guess = torch.tensor(guidance.guess[: len(rows)], dtype=torch.int64)
    assert (rows.gather(1, guess[:, None] >> 5)[:, 0] >> (guess & 31) & 1).all()
    return rows


def outcome(guidance: Guidance) -> tuple[Any, ...]:
    """Return everything that a guidance decides except `read`, its masks as packed bits."""
    decided = guidance.guess, guidance.suspect, guidance.stop, guidance.scored
    refusal = guidance.repaired, guidance.mass, guidance.choice
    return *decided, *refusal, rows_of(guidance).tolist()


def tokens_in(words: Tensor | np.ndarray, size: int) -> set[int]:
    """Return those of the first `size` tokens that a packed row allows."""
    tokens = masks.tokens_in(np.asarray(words))
    return set(tokens[tokens < size].tolist())
