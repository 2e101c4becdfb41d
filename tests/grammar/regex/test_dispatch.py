"""Free text that ends at one of several words, compared with xgrammar's TagDispatch."""

import random

import pytest
from ebnf import matches
from hypothesis import given, settings
from hypothesis import strategies as st
from readers import misread
from recogniser import Recogniser

from dlm.grammar.regex import Literal, TooLargeError, dispatch, free_of
from dlm.grammar.rules import Rules, with_terminals

WORDS = st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3, unique=True)


def made(words, excludes, loop):
    rules = Rules()
    branches = [(word, Literal(f"{i}")) for i, word in enumerate(words)]
    rules.nodes["root"] = dispatch(branches, excludes, loop)
    return with_terminals(rules)


def ebnf(words, excludes, loop):
    pairs = "".join(f'("{word}", r{i}), ' for i, word in enumerate(words))
    out = "".join(f'"{word}",' for word in excludes)
    rules = "".join(f'\nr{i} ::= "{i}"' for i in range(len(words)))
    loops = f"loop_after_dispatch={str(loop).lower()}"
    return f"root ::= TagDispatch({pairs}{loops}, excludes=({out})){rules}"


def fits(words, excludes, loop, text):
    segment, at = "", 0
    while at < len(text):
        segment, at = segment + text[at], at + 1
        if any(map(segment.endswith, excludes)):
            return False
        if found := max((w for w in words if segment.endswith(w)), key=len, default=None):
            if text[at : at + 1] != str(words.index(found)):
                return False
            segment, at = "", at + 1
            if not loop:
                return at == len(text)
    return True


@settings(max_examples=30)
@given(WORDS, WORDS | st.just([]), st.booleans(), st.integers(0, 2**20))
def test_the_first_word_that_ends_counts_and_of_several_the_longest(words, excludes, loop, seed):
    choose = random.Random(seed)
    texts = ["".join(choose.choices("aabbc012", k=choose.randint(0, 9))) for _ in range(60)]
    reader = Recogniser(made(words, excludes, loop))
    assert [reader.accepts(text) for text in texts] == [
        fits(words, excludes, loop, text) for text in texts
    ]


@pytest.mark.parametrize("loop", [True, False])
@pytest.mark.parametrize(
    ("words", "excludes"),
    [(["<a>", "<b>"], ["</"]), (["<a", "b"], []), (["ab", "b"], ["cc"]), (["aba"], ["b1"])],
)
def test_a_dispatch_accepts_the_texts_that_xgrammar_accepts(words, excludes, loop):
    choose = random.Random(0)
    texts = ["".join(choose.choices("ab<>/c01", k=choose.randint(0, 9))) for _ in range(500)]
    texts += ["x<a>0<b>1", "<a>1", "ab0b1a", "ababa0", "aba0ba", "<a>0</"]
    assert matches(made(words, excludes, loop), texts) == matches(
        ebnf(words, excludes, loop), texts
    )


def test_words_that_do_not_overlap_share_one_automaton_of_free_text():
    rules = made([f"<f{i}>" for i in range(500)], ["</end>"], True)
    assert len(rules.nodes) == 1


def test_free_text_contains_none_of_the_words():
    automaton = free_of(["</a>", "aab"])
    assert misread(automaton.accepts, ["</a<aaa\n"], ["x</a>", "aaab"]) == []
    assert free_of([""]) == free_of([])


def test_too_many_words_are_refused():
    with pytest.raises(TooLargeError, match="over 4,096 characters"):
        free_of(["a" * 5000])
    with pytest.raises(TooLargeError, match="words overlap"):
        made(["a" * n for n in range(1, 30)], [], True)
