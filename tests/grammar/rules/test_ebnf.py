"""Grammars in EBNF, as for xgrammar and llama.cpp, compared with xgrammar's reader of it."""

import pytest
from ebnf import matches
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import languages
from recogniser import Recogniser
from trees import texts_near

from dlm.grammar import InvalidGrammarError
from dlm.grammar.parse import Network
from dlm.grammar.regex import Literal, Repetition
from dlm.grammar.rules import check_rules, read_ebnf, with_terminals


def made(source):
    rules = read_ebnf(source)
    check_rules(rules)
    return with_terminals(rules)


@pytest.mark.parametrize(
    "source",
    [
        'root ::= "a" item{2,5} (" " | [^0-9\\n])*   # a comment\nitem ::= "b" | "\\x41" | root?',
        'root ::= w* "."\nw ::= [^.]* | [^.]+ " "',
        'root ::= root "a" | "b" root | "."',
        'root ::= "(" root ")" root | ""',
        'root ::= expr\nexpr ::= expr "+" expr | "1"',
        "root ::= ([a-b] | [^a-b]{2}){1,3}",
        'root ::= "a"{0} "b"{2,} "c"{3}',
        'root ::= (((("a" | ("b"))))) ( ) "" [\\-\\]^\\[a] [-a] [a-]',
        'root ::= "\\"\\\\\\/\\\'\\?\\n\\r\\t\\b\\f\\a\\v\\0\\e\\u00e9\\U0001F600é"',
        'root ::= x "c"\nx ::= "a" (="b")',
        'root ::=\n  "a" |\n  x # and so on\n\nx\n::= "b"',
        'root ::= ("a"? "b"?){2,3}',
        'root ::= x | "a"\nx ::= x | "b"',
        'root ::= ws "a" ws\nws ::= ([ \\n] ws)?',
        'a.b-c_1 ::= "x"\nroot ::= a.b-c_1+',
    ],
)
def test_a_grammar_accepts_the_texts_that_xgrammar_accepts(source):
    texts = texts_near(0, 'ab1+ .()c\nx"-^[]é😀', 300) + texts_near(1, "ab", 200)
    texts += ["\"\\/'?\n\r\t\b\f\a\v\0\x1bé😀é", "abb", "a].", "bbccc", "1+1+1", "(()())()"]
    assert matches(made(source), texts) == matches(source, texts)


@settings(max_examples=30)
@given(languages(), st.integers(0, 2**20))
def test_random_grammars_accept_the_texts_of_their_language(language, seed):
    texts = texts_near(seed, ["a", "ab", "(", "<turn|>", "日本", ", ", "+", "f", "é", "5"])
    ours = matches(made(language.ebnf()), texts)
    assert ours == matches(language.ebnf(), texts)
    assert ours == [language.fits(text) for text in texts]


_ATOMS = st.sampled_from(['"a"', '"ab"', "[a-b]", "[^a]", '""', "root", "x", "y"])
_PARTS = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(" ".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda o: f"({' | '.join(o)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,3}", "{2,}"])).map(
            lambda pair: f"({pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=80)
@given(_PARTS, _PARTS, _PARTS, st.integers(0, 2**20))
def test_making_terminals_of_recursive_and_ambiguous_rules_keeps_their_language(root, x, y, seed):
    source = f'root ::= {root} | "b"\nx ::= {x} | "a"\ny ::= "b" | {y}'
    rules = read_ebnf(source)
    texts = texts_near(seed, "abc", 30)
    assert matches(with_terminals(rules), texts) == matches(rules, texts)


@pytest.mark.parametrize(
    ("source", "text", "refused"),
    [
        ("root ::= . .", "a\n", "a"),
        ('ws ::= | " " | "\\n" [ \\t]{0,20}\nroot ::= ws "a" ws', "\n  \ta ", "  a"),
        ('root ::= "\\x41\\x0a"', "A\n", "A"),
        ('1st ::= "a"\nroot ::= 1st', "a", "1"),
        ("root ::= [\\x00-\\x1F] [\\uD800-\\uE000]", "\x05\ue000", "a\ue000"),
        ('root ::= "\\ud83d\\ude00"', "😀", "a"),
    ],
)
def test_grammars_of_llama_cpp_are_read(source, text, refused):
    assert matches(made(source), [text, refused]) == [True, False]


@pytest.mark.parametrize(
    ("source", "where", "reason"),
    [
        ("", "line 1 column 1", "no rule root"),
        ('x ::= "a"', "line 1 column 1", "no rule root, where a text begins"),
        ('root ::= "a" x', "line 1 column 14", "no rule x"),
        ('root ::= "a"\nroot ::= "b"', "line 2 column 1", "there twice"),
        ('root ::= "a"\n  (', "line 2 column 3", "never closed"),
        ('root ::= "a")', "line 1 column 13", "expected a part"),
        ('root ::= "a', "line 1 column 10", 'closing "'),
        ("root ::= [a", "line 1 column 10", "closing ]"),
        ("root ::= []", "line 1 column 10", "no character"),
        ("root ::= [^\\0-\\U0010ffff]", "line 1 column 10", "no character"),
        ("root ::= [z-a]", "line 1 column 10", "'z' to 'a' is no range"),
        ("root ::= [\\d]", "line 1 column 11", "no escape"),
        ('root ::= "\\q"', "line 1 column 11", "no escape"),
        ('root ::= "\\x41B"', "line 1 column 11", "2 hexadecimal digits"),
        ('root ::= "\\U00110000"', "line 1 column 11", "no character"),
        ('root ::= "\\ud800"', "line 1 column 11", "a lone surrogate"),
        ('root ::= "\ud800"', "line 1 column 11", "a lone surrogate"),
        ('root ::= "a"{2,1}', "line 1 column 13", "no range"),
        ('root ::= "a"{,3}', "line 1 column 13", "{m}, {m,} or {m,n}"),
        ('root ::= "a"{9999999999}', "line 1 column 13", "more than 1000000000 times"),
        ('root ::= "a"{99999999999999999999999}', "line 1 column 13", "a repetition is"),
        ('root ::= "a"*+', "line 1 column 14", "needs brackets"),
        ("root ::= *", "line 1 column 10", "expected a literal"),
        ("root ::=", "line 1 column 9", "has no content"),
        ('root ::= "a" x ::= "b"', "line 1 column 14", "line of its own"),
        ('::= "a"', "line 1 column 1", "begins with its name"),
        ('<root> ::= "a"', "line 1 column 1", "named without brackets, as in root ::="),
        ("root ::= <a>\n<a> ::= .", "line 1 column 10", "named without brackets"),
        ('root = "a" ;', "line 1 column 1", "its name and ::= , not =$"),
        ('root := "a"', "line 1 column 1", "its name and ::= , not :=$"),
        ('root: "a"', "line 1 column 1", "its name and ::= , not :$"),
        ('root -> "a"', "line 1 column 1", "its name and ::= , not ->$"),
        ('root ::= a\na = "x"', "line 2 column 3", "its name and ::= , not ="),
        ('root ::= "a";', "line 1 column 13", "leave ; out"),
        ('root ::= "a", "b"', "line 1 column 13", "without a comma"),
        ("root ::= é", "line 1 column 10", "'é' has no meaning"),
        ("root ::= \0", "line 1 column 10", "no meaning"),
        ("root ::= 'a'", "line 1 column 10", "no meaning"),
        ("root ::= Token(106)", "line 1 column 10", "names tokens: a grammar is of text"),
        ("root ::= ExcludeToken(7)", "line 1 column 10", "names tokens"),
        ('root ::= TokenTagDispatch((1, x))\nx ::= "a"', "line 1 column 10", "names tokens"),
        ('root ::= Regex("a")', "line 1 column 10", "Regex.* is not supported: Lark has regexes"),
        ("root ::= <think>", "line 1 column 10", "a grammar is of text"),
        ('root[max_tokens=5] ::= "a"', "line 1 column 1", r"\[max_tokens=5\] are not supported"),
        ("root ::= " + "(" * 100_000, "line 1 column 74", "more than 64 deep"),
    ],
)
def test_an_invalid_grammar_is_refused_with_its_place_and_the_reason(source, where, reason):
    with pytest.raises(InvalidGrammarError, match=reason) as raised:
        read_ebnf(source)
    assert raised.value.where == where


@pytest.mark.parametrize("rule", ["x ::= x", "x ::= x{2}", "x ::= y\ny ::= x", 'x ::= "a" x'])
def test_a_rule_that_no_finite_text_fits_is_refused(rule):
    with pytest.raises(InvalidGrammarError, match="no finite text fits") as raised:
        made(f'root ::= "a" | x\n{rule}')
    assert raised.value.where == "rule x"


def test_a_long_source_is_refused_and_a_large_one_stays_small():
    with pytest.raises(InvalidGrammarError, match="1000000 characters are too many"):
        read_ebnf("a" * 1_000_000)
    words = [f"word {i}" for i in range(9000)]
    rules = made("root ::= " + " | ".join(f'"{word}"' for word in words))
    assert rules.nodes["root"].automaton.accepts("word 8999")
    assert not rules.nodes["root"].automaton.accepts("word 9000")
    many = made('root ::= ("ab"|"c"){1000000}').nodes["root"]  # in blocks of ten
    assert (many.low, many.high) == (100_000, 100_000)
    assert isinstance(made('root ::= "ab"{1000000}').nodes["root"], Repetition)
    assert made("root" + " " * 60_000 + "::= a" + " " * 60_000 + '\na ::= "x"')
    assert made("root ::= a " + "#" * 60_000 + '\na ::= "x"')
    assert made("root ::= " + "(" * 64 + '"a"' + ")" * 64).nodes == {"root": Literal("a")}


@pytest.mark.parametrize("times", [16, 17, 40])
@pytest.mark.parametrize("item", ['[^.]* "."', '"a"* "."', '("a" | "b")+', '"ab" | "c"'])
def test_repetitions_of_longer_items_are_counted_by_items_and_not_by_characters(item, times):
    matching = Recogniser(made(f"root ::= item{{{times}}}\nitem ::= {item}")).accepts
    for part in ("a.", ".", "aab.", "ab", "a", "c"):
        once = Recogniser(made(f"root ::= {item}")).accepts(part)
        assert matching(part * times) or not once
        if item.endswith('"."'):
            assert not matching("a" * (times - 1) + ".")


def test_a_reference_that_is_repeated_zero_times_may_be_recursive():
    assert matches(made('root ::= "a" x\nx ::= root{0} "b"'), ["ab", "aab"]) == [True, False]


@pytest.mark.parametrize(
    "times", ["{1,100}", "{40}", "{37,}", "{0,52}", "{3,55}", "{11,31}", "{20,20}", "{60,101}"]
)
def test_a_long_repetition_of_a_small_part_is_read_in_blocks(times: str):
    low, _, high = times.strip("{}").partition(",")
    least = int(low)
    most = int(high) if high else least if "," not in times else 10**6
    rules = made(f'root ::= "<" part{times} ">"\npart ::= [a-c] | "\\\\" ("n" | "u" [0-9]{{2}})')
    accepts = Recogniser(rules).accepts
    for number in (0, 1, 2, 9, 10, 11, 19, 20, 21, 30, 31, 32, 36, 37, 39, 40, 41, 52, 53, 54, 55,
                   56, 59, 60, 99, 100, 101, 102):  # fmt: skip
        for part in ("a", "\\n", "\\u07"):
            assert accepts(f"<{part * number}>") == (least <= number <= most), (times, number)


def test_blocks_of_a_repetition_are_few_terminals_however_long_it_is():
    sizes = []
    for times in (100, 1_000, 100_000):
        rules = made(f'root ::= "<" part{{1,{times}}} ">"\npart ::= [a-c] | "\\\\" [n-t]')
        network = Network(rules)
        sizes.append(len(network.terminals))
        assert all(
            len(t.automaton.edges) <= 256 for t in network.terminals if not isinstance(t, bytes)
        )
    assert max(sizes) <= 8
