"""Terminals that take any text in quotes but a few, as the keys that a schema does not name.

The tokens of such a terminal are those of any text without what the exceptions lead to. So only
the exceptions are searched for in the trie, each character in all of its spellings. The module
knows no bounds of length.
"""

import numpy as np

from dlm.grammar.json_escapes import spellings
from dlm.grammar.limits import Meter
from dlm.grammar.masks.bits import without_tokens
from dlm.grammar.masks.trie import Nodes, Trie
from dlm.grammar.masks.walks import TokenSet
from dlm.grammar.regex.automaton import Automaton, Transition
from dlm.grammar.regex.characters import EVERY

_REFUSED = -1  # the state after a character with which no text goes on
_MOST = 4096  # texts that begin exceptions, which bounds a search
_BLOCK = 16  # characters with one beginning: if fewer are refused, another one follows it
COPIED, _SEARCHED = 10, 5  # units of work for a set, and spellings searched for a unit
_STATE_BYTES, _RANGE_BYTES = 200, 170  # of memory
QUOTE, _BACKSLASH = ord('"'), ord("\\")


class Exceptions:
    """The characters of an automaton's states after which not any text may follow."""

    def __init__(self, by_state: dict[int, list[Transition]], final: frozenset[int]):
        """`by_state` holds such characters of each state, and the states after them.

        A text may end at the states in `final`.
        """
        self._by_state, self._final = by_state, final

    @staticmethod
    def of(automaton: Automaton) -> "Exceptions | None":
        """Return the exceptions of an automaton; None if they are too many to search for, or if
        there is no state after which any text may follow."""
        edges, final = automaton.edges, automaton.final
        whole = (q for q in final if len(edges[q]) == len(EVERY))
        free = next((q for q in whole if edges[q] == tuple((*r, q) for r in EVERY)), None)
        if free is None:
            return None
        by_state, level, most = {free: list[Transition]()}, {0: 1}, _MOST
        while level:  # the states after equally many characters, with the number of texts to each
            longer: dict[int, int] = {}
            for q, texts in level.items():
                if q not in by_state:
                    by_state[q] = _differing(edges[q], free)
                for low, high, to in by_state[q]:
                    count = high + 1 - low
                    most -= texts * count
                    if to != _REFUSED:
                        longer[to] = longer.get(to, 0) + texts * count
                    elif count >= _BLOCK:
                        return None
                if most < 0:
                    return None
            level = longer
        return Exceptions(by_state, final)

    @property
    def nbytes(self) -> int:
        """Approximate memory."""
        ranges = sum(map(len, self._by_state.values()))
        return _STATE_BYTES * len(self._by_state) + _RANGE_BYTES * ranges

    def token_set(
        self, base: TokenSet, nodes: Nodes, state: int, trie: Trie, size: int, meter: Meter
    ) -> TokenSet:
        """Return what a text of the automaton reaches below `nodes`, from `state` on.

        `base` is what any text in quotes reaches there. None of `nodes`, which are within the
        quotes, may be below another. `size` is the number of tokens of the vocabulary.
        """
        meter.spend(1)
        missing, searched = self._missing(nodes.tolist(), state, trie)
        meter.add(COPIED + searched // _SEARCHED)
        return without(base, np.array(missing, np.int32), trie, size)

    def _missing(self, nodes: list[int], state: int, trie: Trie) -> tuple[list[int], int]:
        """Return the nodes at which a text is refused, and how many spellings were searched for."""
        missing: list[int] = []
        work, searched = [(node, state) for node in nodes], 0
        for node, at in work:  # `work` grows in the loop
            if at not in self._final and (quoted := trie.child(node, QUOTE)) >= 0:
                missing.append(quoted)
            has_escapes = trie.child(node, _BACKSLASH) >= 0
            for low, high, to in self._by_state[at]:
                for point in range(low, high + 1):
                    for spelling in spellings(point):  # escapes come last
                        searched += 1
                        if spelling[0] == b"\\" and not has_escapes:
                            break
                        ends = trie.spelled(node, spelling)
                        if to == _REFUSED:
                            missing += ends
                        else:
                            work += [(end, to) for end in ends]
        return missing, searched


def _differing(transitions: tuple[Transition, ...], free: int) -> list[Transition]:
    """Return the characters that lead to another state than `free`, with that state."""
    differing: list[Transition] = []
    begin = 0
    for low, high, to in (*transitions, (EVERY[-1][1] + 1, 0, free)):
        if begin < low:
            for first, last in EVERY:
                if begin <= last and low > first:
                    differing.append((max(begin, first), min(low - 1, last), _REFUSED))
        if to != free:
            differing.append((low, high, to))
        begin = high + 1
    return differing


def without(base: TokenSet, missing: Nodes, trie: Trie, size: int) -> TokenSet:
    """Return `base` without what is at the nodes `missing`, or below them.

    If there are none, the memory is shared.
    """
    if not len(missing):
        return TokenSet(base.tokens.view(), base.ends.view())
    begin = np.sort(trie.places[missing])
    end = begin + trie.sizes[trie.preorder.node[begin]]
    below = [trie.preorder.tokens_below(place) for place in begin.tolist()]
    tokens = without_tokens(base.tokens, np.concatenate(below), size)
    ends = trie.places[base.ends]
    kept = ends >= np.append(end, 0)[np.searchsorted(begin, ends, "right") - 1]
    return TokenSet(tokens, base.ends[kept])
