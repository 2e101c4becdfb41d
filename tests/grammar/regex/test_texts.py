"""Texts of patterns without an automaton: their lengths, and patterns narrowed to some lengths."""

from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st

from dlm.grammar.regex import parse
from dlm.grammar.regex.texts import accepts, lengths_of, within

PART = st.sampled_from(
    ["a", "[ab]{1,4}", "b*", "[.a]+", "(ab){0,3}", "a{2}", "(a|b.)", "(a|ab){1,2}", ".{3,9}", "b?"]
)
PATTERN = st.lists(PART, min_size=1, max_size=4).map("".join)
TEXT = st.text("ab.", max_size=14)


@examples(200)
@given(PATTERN | st.tuples(PATTERN, PATTERN).map("|".join), st.integers(0, 14), TEXT)
def test_a_narrowed_pattern_accepts_short_texts_of_the_pattern_alone(
    pattern: str, high: int, text: str
):
    node = parse(pattern, True)
    narrow = within(node, high)
    if narrow is None:
        return
    most = lengths_of(narrow)[1]
    assert most is not None
    assert most <= high
    if accepts(narrow, text):
        assert accepts(node, text)


@examples(100)
@given(PATTERN, TEXT)
def test_a_pattern_whose_texts_are_short_enough_stays_as_it_is(pattern: str, text: str):
    node = parse(pattern, True)
    most = lengths_of(node)[1]
    if most is not None:
        same = within(node, most)
        assert same is not None
        assert accepts(same, text) == accepts(node, text)


def test_repetitions_share_the_characters_that_are_left():
    narrow = within(parse("[a-z]{1,64}@[a-z]{1,253}[.][a-z]{2,63}", True), 254)
    assert narrow is not None
    assert lengths_of(narrow) == (6, 254)
    assert accepts(narrow, "a" * 64 + "@" + "b" * 125 + "." + "c" * 63)
    assert not accepts(narrow, "a" * 64 + "@" + "b" * 126 + ".cc")
    assert within(parse("a{3,9}", True), 2) is None
