"""Limits of effort: automata for a caller that cannot wait stop at a number of steps."""

import pytest

from dlm.grammar import InvalidGrammarError, JsonSchema
from dlm.grammar.limits import RESULTS, TooMuchEffortError, at_most, spend
from dlm.grammar.regex import Automaton, automaton_of

COSTLY = [
    r"^\p{L}{1,200}$",  # few states, of many ranges
    r"^(?=.*[a-z])(?=.*[A-Z])(?=.*\d)(?=.*[^\w])(?=.{8,40}$).*$",
    "^(a|b)*a(a|b){10}$",  # few positions, of many sets
    "^([a-z0-9]{1,30}[-.]){0,60}[a-z]$",
]


@pytest.fixture(autouse=True)
def _nothing_is_cached():
    RESULTS.clear()


def test_steps_count_only_within_the_block():
    spend(1e9)
    with at_most(3):
        spend(3)
        with pytest.raises(TooMuchEffortError):
            spend(1)
    spend(1e9)


@pytest.mark.parametrize("pattern", COSTLY)
def test_a_costly_pattern_stops_within_the_limit_and_is_made_without_one(pattern):
    with at_most(2_000), pytest.raises(TooMuchEffortError):
        automaton_of(pattern, True)
    made = automaton_of(pattern, True)
    with at_most(0):
        assert automaton_of(pattern, True) is made  # it is cached


@pytest.mark.parametrize(
    "make",
    [
        lambda one, other: one.union(other),
        lambda one, other: one.intersection(other),
        lambda one, other: one.complement(),
        lambda one, other: Automaton.words(f"{n * n:x}" for n in range(3_000)),
    ],
)
def test_operations_on_automata_count_their_steps(make):
    one, other = (automaton_of(f"{a}[a-z]{{0,900}}[0-9]", True) for a in "xy")
    with at_most(100), pytest.raises(TooMuchEffortError):
        make(one, other)


def test_costly_patterns_of_a_schema_are_built_only_with_its_rules():
    many = {f"p{n}": {"pattern": pattern} for n, pattern in enumerate(COSTLY)}
    spec = JsonSchema({"type": "object", "properties": many})
    assert RESULTS.nbytes < 4 << 20
    assert spec.rules().root in spec.rules().nodes
    assert RESULTS.nbytes > 8 << 20


def test_cheap_patterns_of_a_schema_are_checked_at_once():
    with pytest.raises(InvalidGrammarError, match="pattern"):
        JsonSchema({"type": "string", "pattern": "(a"})
    with pytest.raises(InvalidGrammarError):
        JsonSchema({"allOf": [{"pattern": "^a{3}$"}, {"pattern": "^b{3}$"}], "type": "string"})
