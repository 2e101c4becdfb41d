"""How far two texts of tokens are the same."""

from collections.abc import Sequence


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)
