"""Places of a text, in columns; and tokens that were taken back, which a matcher keeps."""

from hypothesis import given
from hypothesis import strategies as st
from toys import toy_vocabulary

from dlm.grammar import Compiler, Matcher, Regex
from dlm.grammar.parse.places import TextPlaces

tokens = st.lists(st.integers(0, 3), max_size=5)
changes = st.lists(st.one_of(st.integers(0, 3), tokens, st.floats(0, 1)), max_size=12)


def numbered(numbers):
    """Return columns of tokens, and of what holds after them, all different."""
    return [f"prefix {n}" for n in numbers], [f"state {n}" for n in numbers], [*map(str, numbers)]


@given(changes)
def test_places_are_those_of_a_list_with_one_entry_for_each(changes):
    """A change adds a token, or tokens, or moves a part of the end away and back, or drops it."""
    places, expected = TextPlaces("prefix", "state", None), [(-1, "prefix", "state", None)]
    for number, change in enumerate(changes):
        if isinstance(change, int):
            places.add(change, ("prefix", f"state {number}", "keys"))
            expected.append((change, "prefix", f"state {number}", "keys"))
        elif isinstance(change, list):
            columns = numbered([(number, i) for i in range(len(change))])
            places.extend(change, *columns)
            expected += zip(change, *columns, strict=True)
        else:
            begin = 1 + int(change * (len(expected) - 1))
            end = places.columns(begin)
            places.drop(begin)
            places.extend(*end)
            assert [*zip(*end, strict=True)] == expected[begin:]
            if number % 2:
                places.drop(begin)
                del expected[begin:]

        assert places.tokens == [token for token, *_ in expected]
        assert [places[i] for i in range(len(expected))] == [(*place,) for _, *place in expected]
        assert places.common(1, [*places.tokens[1:3], 9]) == len(places.tokens[1:3])


def test_a_look_at_the_budget_leaves_tokens_that_were_taken_back_in_their_places():
    vocabulary = toy_vocabulary([b"a", b"b", b"c"])
    compiled = Compiler(vocabulary).compile(Regex("a[ab]{2}b{2}c{3}"))
    a, b, c = map(vocabulary.pieces.index, (b"a", b"b", b"c"))
    text = [a, b, b, b, b, c, c, c]
    matcher, fresh = Matcher(compiled), Matcher(compiled)
    assert matcher.accept_all(text) == len(text)
    matcher.rollback(len(text) - 1)
    assert fresh.accept(a)

    assert matcher.squeezes(a, 2)  # six more are needed after it

    for token in text[1:]:
        assert [matcher.accept(token), fresh.accept(token)] == [True, True]
        assert matcher.state == fresh.state
        assert matcher.mask() == fresh.mask()
