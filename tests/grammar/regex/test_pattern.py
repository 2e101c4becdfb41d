"""Regexes as EBNF: what they match, `re` matches too, and what dialects read apart is refused."""

import re

import pytest
import xgrammar as xgr
from hypothesis import given
from hypothesis import strategies as st

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.pattern import parse

BYTES = xgr.GrammarCompiler(
    xgr.TokenizerInfo([bytes([i]) for i in range(256)] + [b""], stop_token_ids=[256]),
    cache_enabled=False,
)


def matcher(pattern):
    grammar = BYTES.compile_grammar(xgr.Grammar.from_ebnf(f"root ::= {parse(pattern)}"))

    def matches(text):
        state = xgr.GrammarMatcher(grammar)
        return all(state.accept_token(byte) for byte in text.encode()) and state.is_completed()

    return matches


@pytest.mark.parametrize(
    ("pattern", "matched", "refused"),
    [
        ("^[a-z]+[0-9]$", ["a1", "zz9"], ["1", "a", "a1 "]),
        ("^a|b$", ["a", "b"], ["ab", ""]),
        (r"a{2}|b{1,2}|c{3,}|", ["aa", "b", "bb", "cccc", ""], ["a", "bbb", "cc"]),
        (r"(?:ab)*?c?", ["", "abab", "c"], ["aab"]),
        (r'"\\/\-\.\$', ['"\\/-.$'], ['"/-.$']),
        (r"\d\w\s", ["1_\t", "0z\n"], ["٣a ", "1é "]),
        (r"\D\W\S", ["a-é", " !."], ["1-a", "a_a", "a- ", "a-\u00a0", "a-\x1c"]),
        (r"[\s\S]+", ["a\nb", "é\u3000"], [""]),
        (r"[^\w-]", ["!", " "], ["é", "a", "-"]),
        (r"[^\s,]+", ["é😀"], ["a,", "\u2003", "a b"]),
        (r".", ["a", "é", "😀", "\t"], ["\n", "\r", "\u2028", ""]),
        (r"[a\-z]", ["a", "-", "z"], ["b"]),
        (r"[a-]", ["a", "-"], ["b"]),
        (r"[é-ü\u0041]", ["é", "ö", "A"], ["a"]),
        (r"\x41\u00e9", ["Aé"], ["Ae"]),
        (r"é😀", ["é😀"], ["é"]),
        ("root|value", ["root", "value"], ["r"]),
        ("a{0}", [""], ["a"]),
        ("()", [""], ["a"]),
    ],
)
def test_a_pattern_matches_whole_texts(pattern, matched, refused):
    matches = matcher(pattern)
    assert [text for text in matched if not matches(text)] == []
    assert [text for text in refused if matches(text)] == []


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(a", "unterminated subpattern"),
        ("((?=a)b)*", "what looks ahead cannot be repeated"),
        ("((a$|b)c)?", "what looks ahead cannot be repeated"),
        ("(a$|b)" * 9, "over 8 times"),
        ("(?<=a)b", "no look-behind"),
        ("(?=a)*b", r"`\*` cannot be here"),
        ("(?=^a)b", r"`\^` cannot be here"),
        ("(?P<x>a)", "no named group"),
        ("(?i)a", "no flag"),
        (r"(a)\1", r"`\\1` has no meaning"),
        (r"\bfoo", r"`\\b` has no meaning"),
        (r"\Afoo\Z", r"`\\A` has no meaning"),
        (r"a^b", r"`\^` cannot be here"),
        (r"a$b", r"`\$` can only be at the end"),
        (r"(a$b)", r"`\$` can only be at the end"),
        (r"a{,3}", r"`\{` cannot be here"),
        (r"a*+", r"`\+` cannot be here"),
        (r"[]a]", "begins with `]`"),
        (r"\p{L}", "bad escape"),
        (r"[^\s\S]", "no character fits"),
        (r"\x00", "no character fits"),
        (r"\ud800", "no character fits"),
    ],
)
def test_what_dialects_read_apart_is_refused(pattern, problem):
    with pytest.raises(InvalidGrammarError, match=problem):
        parse(pattern)


ATOMS = st.sampled_from(
    r"a b é \. . \d \D \w \W \s \S [a-c] [^\d] \n [^\s.] [\W_] [\d-] [\s\S]".split(" ")
)
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "*?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
    ),
    max_leaves=5,
)
TEXTS = st.text(st.sampled_from("aé1_.- \n\r\u00a0\u2028٣😀"), max_size=4)


@given(PATTERNS, st.lists(TEXTS, min_size=4, max_size=8))
def test_what_a_pattern_matches_python_matches_too(pattern, texts):
    matches = matcher(pattern)
    for text in texts:
        if matches(text):
            assert re.fullmatch(pattern, text)
        elif text.isascii() and "\r" not in text:
            assert not re.fullmatch(pattern, text)
