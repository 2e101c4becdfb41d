"""Minimal automata of a list of words, and of all texts but these, as edges and final states.

A list may have a hundred thousand states, so they are made without sets of characters. The
extension in C (`_words.c`) makes the same, if it is built.
"""

from collections.abc import Iterable

from dlm.grammar.limits import spend
from dlm.grammar.native import load
from dlm.grammar.regex.characters import EVERY, SURROGATES, Ranges

NATIVE, _ = load()  # the extension in C, or None
Transition = tuple[int, int, int]  # first character, last character, next state
_State = tuple[bool, tuple[tuple[int, int], ...]]  # whether a word ends in it, and its moves
_DEAD: _State = (False, ())
_LOW, _HIGH = EVERY  # ranges of all characters, below and above the surrogates


def edges_of_words(
    texts: Iterable[str], others: bool = False
) -> tuple[tuple[tuple[Transition, ...], ...], frozenset[int]]:
    """Return the edges and the final states of the automaton of `texts`, or of all `others`.

    States are numbered in the order of a breadth-first search from state 0. A text that has a lone
    surrogate is neither among `texts` nor among the others.
    """
    words = sorted({text for text in texts if not SURROGATES.search(text)})
    if NATIVE is not None:
        return NATIVE.automaton_of_words(words, others, spend)
    states = _states(words)
    start = dead = len(states) - 1  # without words, no word begins in the first state
    if states[start] != _DEAD:
        dead = len(states)
        states.append(_DEAD)  # the state of all texts that no word begins with
    numbers, work = {start: 0}, [start]

    def number_of(state: int) -> int:
        number = numbers.get(state)
        if number is None:
            number = numbers[state] = len(work)
            work.append(state)
        return number

    edges: list[tuple[Transition, ...]] = []
    final: list[int] = []
    for number, state in enumerate(work):  # `work` grows in the loop
        ends, moves = states[state]
        if ends != others:
            final.append(number)
        if others and len(moves) == 1 and 0 < (point := moves[0][0]) < _LOW[1]:  # most states
            away, after = number_of(dead), number_of(moves[0][1])
            before = 0, point - 1, away
            edges.append(
                (before, (point, point, after), (point + 1, _LOW[1], away), (*_HIGH, away))
            )
            continue
        merged: list[Transition] = []
        begin = 0  # of the characters after those that are read
        for point, to in moves:
            if others and begin < point:
                merged += [(*r, number_of(dead)) for r in _between(begin, point - 1)]
            begin, low, after = point + 1, point, number_of(to)
            if merged and merged[-1][2] == after and merged[-1][1] + 1 == point:
                low = merged.pop()[0]
            merged.append((low, point, after))
        if others:
            merged += [(*r, number_of(dead)) for r in _between(begin, EVERY[-1][1])]
        edges.append(tuple(merged))
    return tuple(edges), frozenset(final)


def _between(begin: int, end: int) -> Ranges:
    """Return the characters from `begin` to `end`."""
    ranges = ((max(begin, low), min(end, high)) for low, high in EVERY)
    return tuple((low, high) for low, high in ranges if low <= high)


def _states(texts: list[str]) -> list[_State]:
    """Return the states of the minimal automaton of `texts`; in the last one, each word begins.

    One pass over the texts, which are sorted, merges equal endings (Daciuk): tens of thousands are
    fast.
    """
    registry: dict[_State, int] = {}
    path: list[dict[int, int]] = [{}]  # moves of the states along the last text
    ends = [False]

    def close(length: int) -> None:
        """Finish all states of the path after its first `length` characters."""
        while len(path) > length + 1:
            key = ends.pop(), tuple(path.pop().items())
            path[-1][ord(last[len(path) - 1])] = registry.setdefault(key, len(registry))

    last = ""
    for text in texts:
        common = next(
            (i for i, (a, b) in enumerate(zip(last, text, strict=False)) if a != b),
            min(len(last), len(text)),
        )
        close(common)
        spend(len(text) - common)
        last = text
        path += ({} for _ in text[common:])
        ends += [False] * len(text[common:])
        ends[-1] = True
    close(0)
    return [*registry, (ends[0], tuple(path[0].items()))]
