"""All ways to write a text in tokens, one by one."""

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
    """That a canvas of independent positions `p [L, V]` says `text` and stops, however spelled."""
    return sum(
        float(np.prod([p[i, token] for i, token in enumerate(tokens)]))
        * float(p[len(tokens), list(stops)].sum())
        for tokens in spellings(text, pieces)
        if len(tokens) < len(p)
    )
