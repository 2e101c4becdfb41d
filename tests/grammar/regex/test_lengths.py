"""Which lengths the texts of an automaton have."""

import pytest

from dlm.grammar.regex import any_of_length, bounded

FAR = 10**9


@pytest.mark.parametrize(
    "pattern",
    ["(ab)*", "(abc)*|(ab)*", "a(bbb)*", "(a{6})*|(a{10})*b?", "(a|bb)*c", "(a{7})*(b{3})?"],
)
def test_they_are_those_that_are_found_by_counting(pattern):
    automaton = bounded(pattern, whole=True)[0]
    lengths, states = set(), {0}
    for length in range(200):
        if states.intersection(automaton.final):
            lengths.add(length)
        states = {to for state in states for _, _, to in automaton.edges[state]}
    for low in range(60):
        for high in (None, low, low + 1, low + 4, low + 30):
            fits = (length >= low and (high is None or length <= high) for length in lengths)
            assert any_of_length(automaton, low, high) == any(fits), (low, high)


def test_far_ones_take_no_time():
    automaton = bounded("(ab)*", whole=True)[0]
    assert any_of_length(automaton, FAR, FAR)
    assert not any_of_length(automaton, FAR + 1, FAR + 1)
    assert any_of_length(automaton, FAR + 1, FAR + 2)
