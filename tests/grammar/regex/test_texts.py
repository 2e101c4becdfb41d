"""Texts of patterns without an automaton: their lengths, and patterns narrowed to some lengths."""

from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st

from dlm.grammar.regex import parse
from dlm.grammar.regex.texts import accepts, clipped, lengths_of, within

PART = st.sampled_from(
    ["a", "[ab]{1,4}", "b*", "[.a]+", "(ab){0,3}", "a{2}", "(a|b.)", "(a|ab){1,2}", ".{3,9}", "b?",
     "(a{1,3}b){1,5}", "(b|.a{2,4})*", "([ab]{0,3}[.]?){2,4}"]
)  # fmt: skip
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


@examples(200)
@given(PATTERN | st.tuples(PATTERN, PATTERN).map("|".join), st.integers(0, 14), TEXT)
def test_a_clipped_pattern_has_all_short_texts_and_no_others(pattern: str, high: int, text: str):
    node = parse(pattern, True)
    clip = clipped(node, high)
    if clip is None:
        assert len(text) > high or not accepts(node, text)
    elif len(text) <= high:
        assert accepts(clip, text) == accepts(node, text)
    elif accepts(clip, text):
        assert accepts(node, text)


def test_a_clipped_pattern_counts_no_further_than_its_texts_reach():
    clip = clipped(parse("([a-z]{1,100} ){1,100}x{0,500}", True), 20)
    assert clip is not None
    most = lengths_of(clip)[1]
    assert most is not None
    assert most <= 20 * 10 + 18


def test_rounds_of_unequal_length_are_many_short_ones_or_few_long_ones():
    narrow = within(parse("([a-z]{1,100} ){1,100}", True), 200)
    assert narrow is not None
    assert lengths_of(narrow) == (2, 200)
    for text in ("a " * 100, "abc " * 50, "a " * 3 + "abc " * 47, "a" * 63 + " abc abc "):
        assert accepts(narrow, text)
    for text in ("a " * 101, "a" * 101 + " ", "a" * 100 + " " + "a" * 100 + " ", ""):
        assert not accepts(narrow, text)


def test_repetitions_share_the_characters_that_are_left():
    narrow = within(parse("[a-z]{1,64}@[a-z]{1,253}[.][a-z]{2,63}", True), 254)
    assert narrow is not None
    assert lengths_of(narrow) == (6, 254)
    assert accepts(narrow, "a" * 64 + "@" + "b" * 125 + "." + "c" * 63)
    assert not accepts(narrow, "a" * 64 + "@" + "b" * 126 + ".cc")
    assert within(parse("a{3,9}", True), 2) is None
