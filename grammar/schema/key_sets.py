"""Disjoint sets of keys, distinguished by how the keys begin.

Rules can not forbid that one key comes twice, but two keys of disjoint sets are never equal.
"""

from collections import deque

from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.build import determinized
from dlm.grammar.regex.characters import EVERY
from dlm.grammar.regex.nodes import Characters, Concatenation, Repetition, alternation

_PARTS = 26  # of a range of characters, or one for each set


def key_sets(keys: Automaton, count: int) -> list[Automaton]:
    """Return `count` disjoint sets that make up `keys`; fewer only if there are fewer keys."""
    ends: list[Concatenation] = []  # single keys
    waiting = deque([(Concatenation(()), 0)])  # beginnings of keys, each with its state
    while waiting and len(ends) + len(waiting) < count:
        beginning, state = waiting.popleft()
        if state in keys.final:
            ends.append(beginning)
        for low, high, to in keys.edges[state]:
            for part in _cut(low, high, max(count, _PARTS)):
                longer = Concatenation((*beginning.parts, Characters((part,))))
                waiting.append((longer, to))
    any_text = Repetition(Characters(EVERY))
    texts = ends + [Concatenation((*beginning.parts, any_text)) for beginning, _ in waiting]
    sets = [alternation(*texts[start::count]) for start in range(min(count, len(texts)))]
    return [keys.intersection(determinized(node)) for node in sets]


def _cut(low: int, high: int, most: int) -> list[tuple[int, int]]:
    """Return a range of characters in up to `most` parts of almost equal size."""
    size = high - low + 1
    parts = min(size, most)
    cuts = [low + size * i // parts for i in range(parts + 1)]
    return [(cuts[i], cuts[i + 1] - 1) for i in range(parts)]
