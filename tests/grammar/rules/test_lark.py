"""Grammars in Lark, compared with xgrammar's reader of it."""

import pytest
import xgrammar as xgr
from ebnf import accepts, matches
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import languages
from trees import texts_near

from dlm.grammar import InvalidGrammarError
from dlm.grammar.regex import Literal, Terminal
from dlm.grammar.rules import check_rules, read_lark, with_terminals


def made(source):
    rules = read_lark(source, lambda schema, rules: Literal(f"<{schema['const']}>"))
    check_rules(rules)
    return with_terminals(rules)


_SKIP = '%grammar_options {"allow_initial_skip": true}\n'


@pytest.mark.parametrize(
    "source",
    [
        'start: "a" | "b" start',
        '?start: value (";" value)*\nvalue: INT -> number | NAME\nINT: /[0-9]+/\nNAME: /[a-z]+/',
        '!start: "(" [start] ")" | "a"~2 | "b"~1..3 | "c"{2} | "d"{1,} | "e"{,2}',
        'start: A B*\nA: "x" | /y./\nB: A "1".."3"',
        'start: "ab"i /c+/i /a.b/s?',
        "start:\n  | /a/\n  | ( /b/\n    | /c/ ) start // so\n# and so on",
        'start: _x _Y\n_x: "a"\n_Y: "b"?',
        f'{_SKIP}%ignore / +/\nstart: "a" "b"? C\nC: "c" "c"',
        f'{_SKIP}%ignore WS\n%import common.WS\n%import common (INT, NUMBER)\n'
        'start: "(" start ")" | INT | "a" start "+"',
        "%import common.ESCAPED_STRING -> S\nstart: S | /\"[^\"]*/",
        "%import common.C_COMMENT\n%import common.CNAME\nstart: C_COMMENT CNAME?",
        'start: "\\"\\\\\\n\\u00e9\\/" /\\/\\u00e9/',
        "start: (((/a/ | /b/)+ /c/)? )*",
        'start: %regex {"substring_chunks": ["ab", "c", "", "ab"]} "."',
        'start: T\nT: %regex {"substring_chars": "abc"} "." ',
        'start: name /[a-z]+/\nname[lazy]: /[ab]+c/',
        'start: name /[a-z]*/\nname[suffix="bc"]: /[a-c]*/',
        "start: name /[a-z]*/\nname[stop=END]: /[a-c]+/\nEND: /b|c/",
    ],
)  # fmt: skip
def test_a_grammar_accepts_the_texts_that_xgrammar_accepts(source):
    texts = texts_near(0, 'abcxy13;() +"\\/*_\nBé.', 400) + texts_near(1, "abc ", 200)
    texts += ["(a 1 ) + ", ' "a\\"b"', "/* a */x", "( ( 1 ) ) ", '"\\\né//é', "abcab.", "aa", "..."]
    assert matches(made(source), texts) == matches(xgr.Grammar.from_lark(source), texts)


@settings(max_examples=20)
@given(languages(), st.integers(0, 2**20))
def test_random_grammars_accept_the_texts_of_their_language(language, seed):
    texts = texts_near(seed, ["a", "ab", "(", "<turn|>", "日本", ", ", "+", "f", "é", "5"], 40)
    ours = matches(made(language.lark()), texts)
    assert ours == [language.fits(text) for text in texts]


@pytest.mark.parametrize(
    ("source", "taken", "refused"),
    [
        ('%ignore " "\nstart: "a" "b"', [" ab", "a b ", "  a  b"], ["a b c", ""]),
        ("%ignore WS\nWS: / /\nstart: T\nT: /a/ /b/", [" ab ", "ab"], ["a b"]),
        ("start: T\nT: /[a-z]+/ & ~/if|else/", ["i", "ifs", "elseif"], ["if", "else", "", "A"]),
        ("start: T+\nT: ~/a*/ & /[ab]{2}/", ["ab", "babb"], ["aa", "a", "abaa"]),
        ("start: T\nT: /a/ /b/ & /ab|c/ | /d/", ["ab", "d"], ["a", "c"]),
        ("start: ~/a|bc/ ", ["", "b", "abc"], ["a", "bc"]),
        ("start: /a.b/", ["a\rb", "a\u2028b"], ["a\nb"]),
        ("start: /(.|\\n)*x/", ["a\r\nx"], ["a"]),
        ("start: /(?s:.)[]a]+[^]b]/", ["\n]a.", "a]a"], ["a]]", "\nab"]),
        ("start: /(?!if\\b)[a-z]+/", ["i", "ifx"], ["if"]),
        ('start: sep{/a/, ","}\nsep{x, s}: x (s x)*', ["a", "a,a"], ["", "a,"]),
        ('start: two{two{"a"}}\ntwo{x}: x x', ["aaaa"], ["aa", "aaa"]),
        ('start: two{"a" | "b"}\ntwo{x}: x x', ["aa", "ab"], ["a"]),
        ('start: up{"a"}\nup{x}: x | "(" up{x} ")"', ["a", "((a))"], ["(a"]),
        ('start.3: "a" x\nx.-1: "b"', ["ab"], ["a"]),
        ('A.2: "a"\nB: "b"\nstart: A B', ["ab"], ["ba"]),
        ("A.2: /a+/\nB.1: /b|aaab/\nstart: A B", ["ab", "aaaaab"], ["ba"]),
        ('start: "x" %json {"const": 5} "y"\n%ignore " "', ["x <5> y"], ["x < 5>y"]),
        ('%llguidance {}\n%llguidance {"no_forcing": true}\nstart: "a"', ["a"], ["b"]),
        ('start: "a" ->  b\n | "c"->d', ["a", "c"], ["b"]),
        ('start: T\nT: A{2}\nA: B | "c"\nB: "b"', ["bc"], ["b"]),
        ('start: A INT\nA.1: "x"\n%import common.INT', ["x12"], ["12"]),
        ('start: A\nA: B & /ab*/\nB: %regex {"substring_chars": "abb"}', ["abb", "a"], ["b"]),
        ('start: B "."\nB.2: %regex {"substring_chars": "abc"}', ["bc.", "."], ["ac."]),
        ('start[stop="."]: B\nB: %regex {"substring_chars": "abc"}', ["bc.", "."], ["ac."]),
    ],
)
def test_a_grammar_that_xgrammar_does_not_read_accepts_its_texts(source, taken, refused):
    expected = [True] * len(taken) + [False] * len(refused)
    assert matches(made(source), taken + refused) == expected


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        ("FLOAT", ["1.", ".5", "1e5", "1.5E-3"], ["1", ".", "1e"]),
        ("NUMBER", ["1", "1.5"], ["-1", ""]),
        ("SIGNED_NUMBER", ["-1", "+1.5e3"], ["--1"]),
        ("DECIMAL", ["1.", ".1"], ["1"]),
        ("_EXP", ["e+5"], ["e"]),
        ("HEXDIGIT", ["f", "A"], ["g", "ff"]),
        ("ESCAPED_STRING", ['""', '"a\\"b"', '"\\\\"'], ['"a', '"a"b"', '"\n"', '"\\"']),
        ("WS", [" \t\n\r\f"], ["", "a"]),
        ("WS_INLINE", [" \t"], ["\n"]),
        ("NEWLINE", ["\n", "\r\n\n"], ["\r", ""]),
        ("SH_COMMENT", ["# a"], ["# a\n"]),
        ("CPP_COMMENT", ["// a"], ["/ a"]),
        ("SQL_COMMENT", ["-- a"], ["- a"]),
        ("C_COMMENT", ["/**/", "/* a **/", "/*/ * a\n*/"], ["/*/", "/* */ */"]),
        ("CNAME", ["_a1"], ["1a", "a-b"]),
        ("LETTER", ["a", "Z"], ["aa", "é"]),
    ],
)
def test_common_terminals_are_those_of_lark(name, taken, refused):
    rules = made(f"%import common.{name} -> X\nstart: X")
    assert matches(rules, taken + refused) == [True] * len(taken) + [False] * len(refused)


def test_a_terminal_is_an_automaton_and_long_repetitions_are_bounds():
    rules = made("start: T\nT: /[a-z]{1,5000}/")
    assert [type(node) for node in rules.nodes.values()] == [Terminal]
    assert (rules.nodes["start"].low, rules.nodes["start"].high) == (1, 5000)
    rules = made('%import common (NUMBER, WS)\n%ignore WS\nstart: NUMBER ("," NUMBER)*')
    assert [type(node) for node in rules.nodes.values()] == [Terminal]


@pytest.mark.parametrize(
    ("source", "where", "reason"),
    [
        ("", "line 1 column 1", "no rule start"),
        ('x: "a"', "line 1 column 1", "no rule start, where a text begins"),
        ("start: x", "line 1 column 8", "no rule x"),
        ("start: X", "line 1 column 8", "no terminal X"),
        ('start: "a"\nstart: "b"', "line 2 column 1", "there twice"),
        ('start: "a" x: "b"', "line 1 column 12", "line of its own"),
        ('start: ("a"', "line 1 column 8", "never closed"),
        ('start: "a")', "line 1 column 11", "a rule begins with its name"),
        ('start: "a', "line 1 column 8", 'closing "'),
        ("start: /a", "line 1 column 8", "closing /"),
        ("start: /(a/", "line 1 column 8", "in this regex"),
        ("start: /a/x", "line 1 column 8", "flag x"),
        ("start: /a\\1/", "line 1 column 8", "in this regex"),
        ("start: /(?=a)b/", "line 1 column 8", "nothing matches"),
        ("start: T\nT: /a/ & /b/", "line 2 column 4", "nothing matches"),
        ("start: /a/ & /b/", "line 1 column 8", "& is for terminals"),
        ("start: T\nT: x\nx: /a/", "line 2 column 4", "cannot contain the rule x"),
        ('start: x{"b"} T\nx{X}: X\nT: X & /b/', "line 2 column 7", "contain the parameter X"),
        ('start: x{"b"} T\nx{X}: X\nT: X "c"', "line 2 column 7", "contain the parameter X"),
        ('start: T\nT: "(" T ")" | "a"', "line 2 column 1", "is recursive"),
        ('start: T\nT: ~U\nU: T "a"', "line", "is recursive"),
        ('start: "b".."a"', "line 1 column 8", "the lower first"),
        ('start: "ab".."c"', "line 1 column 8", "a character at each end"),
        ('start: "a"~3..2', "line 1 column 11", "no range"),
        ('start: "a"{,}', "line 1 column 11", "a repetition is"),
        ('start: "a"~9999999999', "line 1 column 11", "more than 1000000000 times"),
        ("start: <|tool|>", "line 1 column 8", "names a token: a grammar is of text"),
        ("start: <[128010]>", "line 1 column 8", "names a token"),
        ("start: @other", "line 1 column 8", "other grammars"),
        ("start: %lark { start: /a/ }", "line 1 column 8", "a grammar within a grammar"),
        ('start: %json {"const"', "line 1 column 8", "%json must have JSON after it"),
        ('start: %json {"const": "\\ud800"}', "line 1 column 8", "a lone surrogate"),
        ('start: T\nT: %json {"const": 1}', "line 2 column 4", "for rules, not for terminals"),
        ('start: %regex {"substring_words": "a"}', "line 1 column 8", "substring_chunks or"),
        ("%declare A\nstart: A", "line 1 column 1", "%declare is not supported"),
        ('%override start: "a"', "line 1 column 1", "%override is not supported"),
        ("%import python.NAME\nstart: NAME", "line 1 column 1", "only terminals of common"),
        ("%import common.NOPE\nstart: NOPE", "line 1 column 1", "common has no terminal NOPE"),
        ('%llguidance {"ignore_once": true}\nstart: "a"', "line 1 column 1", "ignore_once"),
        (
            'start[max_tokens=5]: "a"',
            "line 1 column 7",
            "an option must be lazy, suffix or stop, got max_tokens",
        ),
        (
            'start[capture]: "a"',
            "line 1 column 7",
            "an option must be lazy, suffix or stop, got capture",
        ),
        ('start[stop="a", stop_capture="b"]: /a/', "line 1 column 17", "stop_capture"),
        ('start[stop=""]: /a/', "line 1 column 1", "must have one of suffix and stop"),
        ('start[stop="a", suffix="b"]: /a/', "line 1 column 1", "must have one of suffix and stop"),
        ("start[lazy]: x\nx: /a/", "line 1 column 14", "cannot contain the rule x"),
        ('T[lazy]: "a"\nstart: T', "line 1 column 1", "cannot have parameters or options"),
        ('start::_: "a"', "line 1 column 1", "parametric rules"),
        ("start: two\ntwo{x}: x x", "line 1 column 8", "two is a template"),
        ('start: two{"a", "b"}\ntwo{x}: x x', "line 1 column 8", "no template with 2"),
        ('start: x{"a"}\nx{y}: x{y y}', "line", "templates make over 1000 rules"),
        ('A.2: "if"\nB: /[a-z]+/\nstart: A | B', "line 1 column 1", "how 'if' is read"),
        ("start: " + "(" * 100_000, "line 1 column 72", "more than 64 deep"),
        ("start: " + "~" * 100_000 + "/a/", "line 1 column 72", "more than 64 deep"),
        ("start: \0", "line 1 column 8", "no meaning"),
        ("start: é", "line 1 column 8", "no meaning"),
        ("start: '\ud800'", "line 1 column 9", "a lone surrogate"),
        ('start: x\nx["a"i | "b"i' + ' | "c"i' * 40 + "]", "line 1 column 8", "no rule x"),
    ],
)
def test_an_invalid_grammar_is_refused_with_its_place_and_the_reason(source, where, reason):
    with pytest.raises(InvalidGrammarError, match=reason) as raised:
        made(source)
    assert raised.value.where.startswith(where)


def test_a_refused_schema_is_reported_with_its_place_in_the_grammar():
    def refuse(schema, rules):
        raise InvalidGrammarError("JSON schema", "nothing fits", "/properties/a")

    with pytest.raises(InvalidGrammarError, match="%json at /properties/a: nothing fits") as raised:
        read_lark('start: "a"\n  %json {}', refuse)
    assert raised.value.where == "line 2 column 3"


def test_very_large_sources_are_refused_or_stay_small():
    with pytest.raises(InvalidGrammarError, match="1000000 characters are too many"):
        made("a" * 1_000_000)
    assert made('start: ("ab"|"c"){3000}')
    words = [f"word{i}" for i in range(3000)]
    rules = made("start: " + " | ".join(f'"{word}"' for word in words))
    assert rules.nodes["start"].automaton.accepts("word2999")
    chain = "\n".join(f'T{i}: "a" T{i + 1}' for i in range(1000))
    assert len(made(f'start: T0\n{chain}\nT1000: "b"').nodes) < 1000
    with pytest.raises(InvalidGrammarError, match="nested too deeply"):
        made(f'start: T\nT: ~T0\n{chain}\nT1000: "b"')
    doubled = "\n".join(f"x{i}{{y}}: x{i + 1}{{y y}}" for i in range(60))
    assert accepts(made(f'start: x0{{"a"}}\n{doubled}\nx60{{y}}: "b"'), "b")
