"""Lengths of the texts that an automaton accepts."""

from dlm.grammar.regex.automaton import Automaton

_MOST_SETS = 4096  # sets of states that `any_of_length` examines


def any_of_length(automaton: Automaton, low: int, high: int | None) -> bool:
    """Whether a text of `low` to `high` characters is accepted; True if that takes too long.

    The set of states after all texts of a length follows from the set for one character less. Once
    a set recurs, whole cycles are skipped.
    """
    if automaton.is_empty or (high is not None and high < low):
        return False
    if automaton == Automaton.ANY or (not low and high is None):
        return True
    states, length, seen = frozenset((0,)), 0, dict[frozenset[int], int]()
    for _ in range(_MOST_SETS):
        if states in seen and length < low:
            length += (low - length) // (length - seen[states]) * (length - seen[states])
        if not states or (high is not None and length > high) or seen.get(states, -1) >= low:
            return False
        if length >= low and not states.isdisjoint(automaton.final):
            return True
        seen[states] = length
        states = frozenset(to for state in states for _, _, to in automaton.edges[state])
        length += 1
    return True
