"""The tokens that may follow a state, in groups that lead to the same situation."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, UInt64

from dlm.grammar.parse.branches import (
    FAR,
)

UNREACHABLE = FAR + 1  # bytes: the end is unreachable


class Following(NamedTuple):
    """Tokens that may follow a state. Tokens with equal `places` lead to the same situation."""

    tokens: Int64[np.ndarray, " n"]
    costs: Int64[np.ndarray, " n"]  # the fewest bytes to the end after each, at most `FAR`
    places: UInt64[np.ndarray, " n"]

    def groups(
        self, chosen: Bool[np.ndarray, " n"] | None
    ) -> Iterator[tuple[Int64[np.ndarray, " m"], int]]:
        """Yield groups of tokens that lead to the same situation, with its cost, sorted by cost.

        `chosen` selects tokens; None: all.
        """
        tokens = self.tokens if chosen is None else self.tokens[chosen]
        costs = self.costs if chosen is None else self.costs[chosen]
        places = self.places if chosen is None else self.places[chosen]
        order = np.lexsort((tokens, places, costs))
        tokens, costs, places = tokens[order], costs[order], places[order]
        new = np.ones(len(tokens), bool)
        new[1:] = places[1:] != places[:-1]
        cuts = [*np.flatnonzero(new).tolist(), len(tokens)]
        groups = [
            (int(costs[begin]), int(tokens[begin]), begin, end) for begin, end in pairwise(cuts)
        ]
        for cost, _, begin, end in sorted(groups):  # `places` differ from run to run
            yield tokens[begin:end], cost


def scattered(numbers: np.ndarray) -> np.ndarray:
    """Return hashes of `numbers` (splitmix64's finaliser). Sums of them identify sets."""
    z = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
