"""Products of patterns in pieces with an automaton: compared with a match of each."""

import pytest
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from recogniser import Recogniser

from dlm.grammar.regex import NOTHING, Automaton, Node, TooLargeError, parse
from dlm.grammar.regex.patterns import automaton_of
from dlm.grammar.regex.products import MOST_STEPS, product
from dlm.grammar.regex.texts import accepts
from dlm.grammar.rules import Rules
from dlm.grammar.rules.folding import folded

PART = st.sampled_from(
    ["a", "[ab]{1,40}", "b{0,50}", "[.a]+", "(ab){0,3}", "(a|b.)", "(a{1,40}b){1,4}", "b?", "[.]"]
)
PATTERN = st.lists(PART, min_size=1, max_size=4).map("".join)
CONDITION = st.sampled_from(
    ["a*b?[.]?a*", ".{4,}", "(ab|[.])*", "[ab]*", "..?.?", "(a*[.]a*){2}", ""]
)
TEXT = st.text("ab.", max_size=9)


def rules_of(node: Node, automaton: Automaton) -> Rules:
    rules = Rules()
    rules.nodes[rules.root] = product(node, automaton, lambda part: rules.add(part, "t"), int)
    return rules


@examples(150)
@given(PATTERN | st.tuples(PATTERN, PATTERN).map("|".join), CONDITION, st.lists(TEXT, max_size=20))
def test_a_product_accepts_what_both_accept(pattern: str, condition: str, texts: list[str]):
    node = parse(pattern, True)
    automaton = automaton_of(condition, True)
    rules = rules_of(folded(node), automaton)
    if rules.nodes[rules.root] == NOTHING:
        assert not any(accepts(node, text) and automaton.accepts(text) for text in texts)
        return
    recogniser = Recogniser(rules)
    for text in texts:
        assert recogniser.accepts(text) == (accepts(node, text) and automaton.accepts(text))


def test_work_is_counted_and_bounded():
    node = folded(parse("([a-z]{1,90}[.]){1,60}", True))
    steps: list[int] = []
    with pytest.raises(TooLargeError, match=r"the other conditions take|over 1,000 pieces"):
        product(node, automaton_of("[a-z.]{70,}", True), lambda part: part, steps.append)
    assert 0 < sum(steps) < 2 * MOST_STEPS


def test_rounds_without_an_end_are_refused():
    node = parse("([a-z]{1,90}[.])*", True)
    with pytest.raises(TooLargeError, match="it repeats a part over 64 times"):
        product(node, Automaton.words(["a.", "b."]).complement(), lambda part: part, int)
