"""Terminals that take any text in quotes but a few, as the keys that a schema does not name.

The tokens of such a terminal are those of any text without what the exceptions lead to. So only
the exceptions are searched for in the trie, each character in all of its spellings. The module
knows no bounds of length.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from dlm.grammar.json_escapes import Spelling, spellings
from dlm.grammar.limits import LazyDict, Meter
from dlm.grammar.masks.bits import as_numbers_if_few, token_words
from dlm.grammar.masks.trie import Nodes, Trie
from dlm.grammar.masks.walks import TokenSet
from dlm.grammar.regex.automaton import Automaton, Transition
from dlm.grammar.regex.characters import EVERY

_REFUSED = -1  # the state after a character with which no text goes on
_MOST = 4096  # texts that begin exceptions, which bounds a search
_BLOCK = 16  # characters with one beginning: if fewer are refused, another one follows it
_COPIED, _SEARCHED = 10, 5  # units of work for a set, and spellings searched for a unit
_STATE_BYTES, _CHARACTER_BYTES = 200, 500  # of memory
QUOTE = ord('"')


class Exceptions:
    """The characters of an automaton's states after which not any text may follow."""

    def __init__(self, by_state: dict[int, list[Transition]], final: frozenset[int]):
        """`by_state` holds such characters of each state, and the states after them."""
        self._by_state = by_state
        self._spelled = LazyDict(lambda state: _by_first_byte(by_state[state], state in final))

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
                    by_state[q] = [*islice(_differing(edges[q], free), most + 1)]
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
        characters = (
            high + 1 - low for ranges in self._by_state.values() for low, high, _ in ranges
        )
        return _STATE_BYTES * len(self._by_state) + _CHARACTER_BYTES * sum(characters)

    def token_set(
        self, base: TokenSet, nodes: Nodes, state: int, trie: Trie, size: int, meter: Meter
    ) -> TokenSet:
        """Return what a text of the automaton reaches below `nodes`, from `state` on.

        `base` is what any text in quotes reaches there. None of `nodes`, which are within the
        quotes, may be below another. `size` is the number of tokens of the vocabulary.
        """
        meter.spend(1)
        missing, searched = self._missing(nodes.tolist(), state, trie)
        meter.add(_COPIED + searched // _SEARCHED)
        if missing:
            return _without(base, np.array(missing, np.int32), trie, size)
        return TokenSet(base.tokens.view(), base.ends.view())

    def _missing(self, nodes: list[int], state: int, trie: Trie) -> tuple[list[int], int]:
        """Return the nodes at which a text is refused, and how many spellings were searched for."""
        missing, work, searched = list[int](), [(node, state) for node in nodes], len(nodes)
        for node, at in work:  # `work` grows in the loop
            spelled = self._spelled[at]
            for byte, child in trie.children_by(node, spelled):
                searched += len(spelled[byte])
                for spelling, to in spelled[byte]:
                    ends = trie.spelled(child, spelling) if spelling else (child,)
                    if to == _REFUSED:
                        missing += ends
                    else:
                        work += ((end, to) for end in ends)
        return missing, searched


def _by_first_byte(
    differing: list[Transition], final: bool
) -> dict[int, list[tuple[Spelling, int]]]:
    """Return by their first byte the spellings of the characters of a state, each without that
    byte, and the state after them. `final`: a text may end at the state."""
    onward: dict[int, list[tuple[Spelling, int]]] = {} if final else {QUOTE: [((), _REFUSED)]}
    for low, high, to in differing:
        for point in range(low, high + 1):
            for (byte,), *spelling in spellings(point):
                onward.setdefault(byte, []).append((spelling, to))
    return onward


def _differing(transitions: tuple[Transition, ...], free: int) -> Iterator[Transition]:
    """Yield the characters that lead to another state than `free`, with that state."""
    begin = 0
    for low, high, to in (*transitions, (EVERY[-1][1] + 1, 0, free)):
        if begin < low:
            for first, last in EVERY:
                if begin <= last and low > first:
                    yield max(begin, first), min(low - 1, last), _REFUSED
        if to != free:
            yield low, high, to
        begin = high + 1


def _without(base: TokenSet, missing: Nodes, trie: Trie, size: int) -> TokenSet:
    """Return `base` without what is at the nodes `missing`, or below them."""
    begin = np.sort(trie.places[missing])
    end = begin + trie.sizes[trie.preorder.node[begin]]
    words = base.tokens.copy() if base.tokens.dtype == np.uint32 else token_words(base.tokens, size)
    below = [trie.preorder.tokens_below(place) for place in begin.tolist()]
    words &= ~token_words(np.concatenate(below), size)
    ends = trie.places[base.ends]
    kept = ends >= np.append(end, 0)[np.searchsorted(begin, ends, "right") - 1]
    return TokenSet(as_numbers_if_few(words), base.ends[kept])
