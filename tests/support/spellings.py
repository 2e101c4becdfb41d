"""Spellings of a text in tokens, one by one."""

from collections.abc import Sequence

import numpy as np


def spellings(text: bytes, pieces: Sequence[bytes]) -> list[list[int]]:
    if not text:
        return [[]]
    return [
        [token, *rest]
        for token, piece in enumerate(pieces)
        if piece and text.startswith(piece)
        for rest in spellings(text[len(piece) :], pieces)
    ]


def probability(text: bytes, pieces: Sequence[bytes], p: np.ndarray, stops: Sequence[int]) -> float:
    """Return the probability that independent positions `p [L, V]` spell `text` and a stop."""
    return sum(
        float(np.prod([p[i, token] for i, token in enumerate(tokens)]))
        * float(p[len(tokens), list(stops)].sum())
        for tokens in spellings(text, pieces)
        if len(tokens) < len(p)
    )
