"""The tokens of a terminal within bounds of length, from its tokens without bounds.

Where texts of every length may follow, a bound excludes a token by the number of its characters
alone, whatever they are. They are counted once for any text, in all spellings of JSON.
"""

import numpy as np

from dlm.grammar.masks.bits import without_tokens
from dlm.grammar.masks.trie import Trie
from dlm.grammar.masks.walks import Reached, TokenSet
from dlm.grammar.parse.branches import Bounds
from dlm.grammar.parse.scanner import Scanner


class CharacterCounts:
    """The characters of any text up to each trie node, including one that is begun."""

    def __init__(self, scanner: Scanner, reached: Reached, trie: Trie):
        """`reached` is what the `scanner` of any text in quotes reaches, from either side of its
        opening quote, with counts."""
        fewest = np.array(scanner.fewest_characters(), np.int32)
        counts = (reached.counts + fewest[reached.states]).astype(np.int16)
        self._at = np.zeros(len(trie), np.int16)  # by node
        self._at[reached.nodes] = counts
        tokens, owner = trie.tokens_at(reached.nodes)
        closes = np.array(scanner.final)[reached.states]
        self._tokens = _by_count(tokens, counts[owner])
        closing = np.flatnonzero(closes[owner])
        self._closing = _by_count(tokens[closing], counts[owner[closing]])
        self._most = int(counts.max(initial=0))
        self._most_closed = int(counts[closes].max(initial=0))

    def clamped(self, bounds: Bounds, quoted: bool) -> Bounds:
        """Return bounds that allow the same tokens and ends, one for many.

        If not `quoted`, a text may end at all nodes between two characters.
        """
        low, high = bounds
        low = min(max(low, 0), 1 + (self._most_closed if quoted else self._most))
        return low, None if high is None or high >= self._most else high

    def within(self, unbounded: TokenSet, bounds: Bounds, size: int) -> TokenSet:
        """Return the tokens of `unbounded` after which a text within `bounds` may end, and the
        nodes at which it may. `size` is the number of tokens of the vocabulary."""
        (low, high), (tokens, counts) = bounds, self._closing
        missing = [tokens[: np.searchsorted(counts, low)]]
        at = self._at[unbounded.ends]
        kept = at >= low
        if high is not None:
            tokens, counts = self._tokens
            missing.append(tokens[np.searchsorted(counts, high, "right") :])
            kept &= at <= high
        left = without_tokens(unbounded.tokens, np.concatenate(missing), size)
        return TokenSet(left, unbounded.ends[kept])


def _by_count(tokens: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and their counts of characters, sorted by these."""
    order = np.argsort(counts, kind="stable")
    return tokens[order], counts[order]


def counts_alone(scanner: Scanner, state: int, bounds: Bounds) -> bool:
    """Whether `bounds` exclude what follows `state` by the number of its characters alone.

    False within a character, and in another spelling than JSON's, since both are not counted.
    """
    at, (low, high) = scanner.between(state), bounds
    if not scanner.escaped or (at is None and state != scanner.start):
        return False
    if high is None:
        return scanner.endless
    from_first = not at and 0 not in scanner.automaton.final  # a text has at least one character
    return scanner.gapless and max(low, from_first) <= high
