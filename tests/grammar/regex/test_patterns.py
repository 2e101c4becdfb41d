"""Patterns of ECMA-262, compared with Python's `re` where the two agree."""

import re
from itertools import product

import pytest
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from readers import misread

from dlm.grammar import InvalidGrammarError
from dlm.grammar.regex import Automaton, automaton_of, bounded

TEXTS = ["".join(text) for n in range(4) for text in product("ab \n", repeat=n)]
PATTERNS = st.recursive(
    st.sampled_from(["", "a", "b", "ab", ".", "[^a]", r"\w", r"\s", r"\W", "^", "$", r"\b", r"\B"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{'|'.join(pair)})"),
        st.tuples(inner, st.sampled_from(["*", "+?", "?", "{2}", "{0,2}", "{1,3}", "{2,}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
        st.tuples(st.sampled_from(["(?=", "(?!"]), inner).map(lambda pair: f"{''.join(pair)})"),
        st.sampled_from(["(?<=a)", "(?<!a)", "(?<=b.)", r"(?<!\w )", "(?<=a{2}b)", "(?<!^)"]),
    ),
    max_leaves=7,
)


def readings(pattern: str) -> list[re.Pattern[str]]:
    """Return `pattern` as each reader understands it.

    `$` matches only at the end of the text, or also before its last line feed; `\\B` matches in an
    empty text or, in Python before 3.14, does not.
    """
    inside, outside, some = r"(?<=\w)(?=\w)", r"(?<!\w)(?!\w)", r"(?:(?<=[\s\S])|(?=[\s\S]))"
    return [
        re.compile(pattern.replace(r"\B", f"(?:{inside}|{outside}{more})").replace("$", end), re.A)
        for more in ("", some)
        for end in (r"\Z", "$")
    ]


@examples(200)
@given(PATTERNS, st.booleans())
def test_a_pattern_with_assertions_matches_what_re_matches(pattern, whole):
    automaton = automaton_of(pattern, whole)
    for text in TEXTS:
        found = [each.fullmatch(text) if whole else each.search(text) for each in readings(pattern)]
        assert automaton.accepts(text) == all(found)


@pytest.mark.parametrize(
    ("pattern", "found", "refused"),
    [
        ("a{2}", ["xaax"], ["a"]),  # it searches
        ("^a|b$", ["ax", "xb"], ["xax", ""]),
        ("^(a|b$)", ["ax", "b"], ["bx", "xa"]),
        ("(^a|b)c", ["ac", "xbc"], ["xac"]),
        ("a$b|a^b", [], ["ab", "a$b", "a\nb"]),
        ("^[^ ]*$", ["ab\u2028"], ["a b"]),
        ("(^a)?b", ["ab", "xb", "cab"], ["a"]),
        (r"^\d\w\s\D\W\S$", ["1_\u2003a- "[:5] + "x"], ["٣a b-c", "1é b-c"]),
        (r"^\s$", ["\u2028", "\u00a0", "\v"], ["\ufeff", "\u0085", "\x1c", "\u200b"]),
        ("^.$", ["😀", "\0", "\u0085"], ["\n", "\r", "\u2028", "\u2029", ""]),
        (r"^[\s\S]$|^[^]{2}$", ["\n", "\r\n"], ["", "abc"]),
        (r"^[\w-.]$", ["-", ".", "a"], ["/", ","]),
        (r"^[a-]$|^[-b]$|^[\]\\]$", ["a", "-", "b", "]", "\\"], ["c"]),
        (r"^a[]?$", ["a"], [""]),
        (r"^\x41\u0042\u{1F600}\cJ\0\/\-\_$", ["AB😀\n\0/-_"], []),
        (r"^\ud83d\ude00$", ["😀"], []),
        (r"^[\ud83d]$|\ud800", [], ["😀", ""]),
        (r"^🐲*$", ["🐲🐲", ""], ["🐉"]),
        (r"^[\b]$", ["\b"], ["b"]),
        (r"^{a}]$", ["{a}]"], []),
        (r"^(?<year>\d)(?P<m>x)(?:y)$", ["1xy"], []),
        (r"^\p{Lu}\p{Letter}*\P{L}$", ["Éa1"], ["éa1", "Éaa"]),
        (r"^\p{gc=Nd}[\p{L}_]\p{ASCII}[^\P{Any}]$", ["٣é~😀"], ["xé~a"]),
        (r"^\p{LC}\p{Assigned}\P{Assigned}$", ["aa\u0378"], ["aaa"]),
        (r"(?i)^straße\d[^a]$", ["STRAẞE1b"], ["STRASSE1b", "straße1A"]),
        (r"^(?i:k[a-c])d$", ["KCd", "\u212abd"], ["kaD"]),
        (r"^a(?i)b|c$", ["aB", "C"], ["AB"]),
        (r"^(?i:a(?-i)b)(?s:.)$", ["Ab\n"], ["AB."]),
        (r"(?m)^a$", ["x\na\ny"], ["xa", "a b"]),
        (r"^(?!.*\bfoo\b).*$", ["food", ""], ["a foo b"]),
        (r"^(?=.*\d)(?=.*[a-z]).{3,}$", ["1ab", "__a1"], ["abc", "a1"]),
        (r"(?<=\$)\d+(?!\d|\.)", ["a$12"], ["12", "$1."]),
        (r"^(?!-)[a-z-]{1,63}(?<!-)$", ["a-b"], ["-a", "a-", ""]),
        (r"^(?!(?:con|aux)$)[a-z]+$", ["cons"], ["con"]),
        (r"^(?=(?=a)a(?!b)).$", ["a"], ["b"]),
        ("(ac*)?$", ["", "x", "acc"], []),
        ("^(ac*)?$", ["acc"], ["c"]),
        ("^(b{1,2}|b)$", ["bb"], ["bbb"]),
    ],
)
def test_a_pattern_is_found_in_its_texts_and_no_others(pattern, found, refused):
    assert misread(automaton_of(pattern, whole=False).accepts, found, refused) == []


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(a", "character 0: this group does not end"),
        ("a)", "character 1: `\\)` without a group"),
        ("[a", "this class does not end"),
        ("a\\", "ends"),
        ("*a", "`\\*` repeats nothing"),
        ("a**", "`\\*` repeats nothing"),
        ("a{,3}", "`{` repeats nothing"),
        ("a{3,2}", "out of order"),
        ("[b-a]", "out of order"),
        ("a++", "possessive"),
        ("(?>a)", "an atomic group"),
        ("(?(1)a)", "a condition"),
        ("(?#a)", "a comment"),
        ("(?x)a", "this kind of group"),
        (r"(a)\1", "character 5: an automaton cannot match a reference"),
        (r"(?<n>a)\k<n>", "a reference"),
        (r"\Aa", r"`\\A` is not known in ECMAScript: use `\^`"),
        (r"a\Z", r"`\\Z` is not known in ECMAScript: use `\$`"),
        (r"\a", "has no meaning"),
        (r"\p{Script=Elvish}", "'Script=Elvish' is no Unicode property of ECMA-262"),
        ("[[:alpha:]]", "not known in ECMAScript"),
        ("^*", "reads no character"),
        ("(?=a)+", "reads no character"),
        (r"(?<=a\b)", "within a lookbehind"),
        ("(?<=a(?!b))", "within a lookbehind"),
        (r"\u{110000}", "beyond 10FFFF"),
        ("(" * 51 + ")" * 51, "over 50 groups"),
        ("^(ab?){1,99999999999}$", "too large: .*over"),
        ("a{1,9999999999999999}", "over 15 digits"),
        ("^(a{1,5000}){1,5000}$", "too large: .*over"),
        ("(a|b)*a(a|b){13}", "too large: .*over 4,096 states"),
        ("((a{99}){99}){99}", "too large: .*over"),
        ("(" * 12 + "(){9}" + "){9}" * 12, "too large: .*over"),
        ("a(){1000000000}", "too large: .*over"),
        ("(" * 5 + "()" * 1000 + "){9}" * 5, "too large: .*over"),
        ("((?<=(?:a|b)*a(?:a|b){9})[ab]){999}", "too large: .*over"),
        ("".join(f"(?<=(a|b)*a(a|b){{9}}{chr(0x4E00 + i)})b" for i in range(99)), "over .* steps"),
        ("(?=(a|b)*a(a|b){13}c)", "too large: .*over"),
    ],
)
def test_an_unreadable_pattern_is_refused_with_its_place_and_the_reason(pattern, problem):
    with pytest.raises(InvalidGrammarError, match=problem):
        automaton_of(pattern, whole=False)


@pytest.mark.parametrize(
    ("pattern", "starred", "low", "high"),
    [
        ("^[a-z]{1,99999999999}$", "^[a-z]*$", 1, 99999999999),
        ("^[A-Z][a-z]{0,4999}$", "^[A-Z][a-z]*$", 1, 5000),
        ("^(ab|cd){50,}x$", "^(ab|cd)*x$", 101, None),
        (r"^(?!\s*$).{1,500}$", r"^(?!\s*$).*$", 1, 500),
        (r"^(?=.{4,253}$)(?!-)[a-z.-]+(?<!-)$", r"^(?!-)[a-z.-]+(?<!-)$", 4, 253),
        ("^(?=[ab]{1,50}$)(?=.{9}$).{7,60}$", "^[ab]*$", 9, 9),
        ("^[0-9a-f]{5000}$", "^[0-9a-f]*$", 5000, 5000),
        ("^[a-z]{3,8}$", "^[a-z]{3,8}$", 0, None),
        ("^[a-z]{1,99}b?$", "^[a-z]{1,99}b?$", 0, None),
        ("[a-z]{3,9999}", "[a-z]{3}", 0, None),
    ],
)
def test_a_long_repetition_becomes_bounds_on_the_length(pattern, starred, low, high):
    assert bounded(pattern, whole=False) == (automaton_of(starred, whole=False), low, high)


@examples(40)
@given(st.lists(st.sampled_from(["a", "[ab]", "(ab|ba)", "b{2}"]), max_size=3), st.data())
def test_bounds_on_the_length_keep_the_meaning_of_a_pattern(parts, data):
    repeated = data.draw(st.sampled_from(["a", "[ab]", "(aa|ab)"]))
    low = data.draw(st.integers(0, 40))
    high = data.draw(st.none() | st.integers(max(33, low), 45))
    parts.insert(
        data.draw(st.integers(0, len(parts))), f"{repeated}{{{low},{'' if high is None else high}}}"
    )
    pattern = f"^{''.join(parts)}$"
    automaton, least, most = bounded(pattern, whole=False)
    counted = automaton.intersection(Automaton.lengths(least, most))
    assert counted == automaton_of(pattern, whole=False)


def test_the_bounds_of_a_repetition_are_ascii_digits():
    assert automaton_of("^a{٣}$", whole=False).accepts("a{٣}")


def test_patterns_that_backtrack_elsewhere_are_matched_in_one_pass():
    automaton, long = automaton_of("^((a+)+b{90}|a{50})$", whole=False), "a" * 100_000
    assert misread(automaton.accepts, ["a" * 50, long + "b" * 90], [long + "b" * 89]) == []
    assert automaton_of("^((a?){9}a*)*b$", whole=False) == automaton_of("^a*b$", whole=False)


@pytest.mark.parametrize(
    ("pattern", "states"),
    [
        (r"^[\w\/\.:-]+$", 2),
        (r"^([a-z0-9-]+):([a-z0-9\.-]+):([a-z0-9-]+)?:([a-z0-9-]+)$", 7),
        (r"^\S+@\S+$", 4),
        (r"^(?:http(s)?:\/\/)?[\w.-]+(?:\.[\w\.-]+)+[\w\-\._~:/?#[\]@!\$&'\(\)\*\+,;=.]+$", 13),
        (r"^(?=.*[a-z])(?=.*[A-Z])(?=.*\d)(?=.*[@$!%*?&])[A-Za-z\d@$!%*?&]{8,}$", 76),
        (r"^\p{Lu}\p{L}{0,254}$", 2),
        ("^((a+)+b{90}|a{50})$", 142),
    ],
)
def test_common_patterns_have_few_states(pattern, states):
    assert len(bounded(pattern, whole=False)[0].edges) <= states


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"\s", r"\S", r"\d", r"\D", r"\w", r"\W", r"[^\s]", r"[^\W]", r"[\s\d]", "."),
        *(r"(?!\d).", r"(?!\W).", r"(?=[^\D]).", r"\b.", r"\B.", r"(?i)\w"),
    ],
)
def test_readers_that_disagree_on_unicode_agree_on_what_is_accepted(pattern):
    """The narrow automaton matches for every reader; the wide one refuses what none matches."""
    narrow = automaton_of(f"^{pattern}$", whole=False)
    wide, _, _ = bounded(f"^{pattern}$", False, wide=True)
    known = re.compile(rf"{pattern}\Z")
    for point in [*range(0x3100), 0xFEFF, *range(0x10330, 0x104B0)]:
        text = chr(point)
        if narrow.accepts(text):
            assert known.match(text), hex(point)
        if not wide.accepts(text):
            assert not known.match(text), hex(point)


def test_the_wide_automaton_matches_before_a_last_line_feed_as_python_does():
    wide, _, _ = bounded("^(a|b$)", False, wide=True)
    for text in ["a", "ac", "b", "b\n", "bc", "b\n\n", "c\n"]:
        assert wide.accepts(text) == bool(re.search("^(a|b$)", text)), text
    assert not automaton_of("^b$", whole=False).accepts("b\n")
