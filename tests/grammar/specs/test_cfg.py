"""Context-free grammars: both notations, and a schema within."""

import pytest
from spoken import accepts, recogniser

from dlm.grammar import Grammar, InvalidGrammarError


@pytest.mark.parametrize(
    "spec",
    [
        Grammar('root ::= "(" root ")" | "x"'),
        Grammar('start: "(" start ")" | "x"', syntax="lark"),
    ],
)
def test_a_grammar_may_nest(spec):
    assert accepts(spec, "((x))")
    assert not accepts(spec, "((x)")
    assert spec.value("((x))") == "((x))"


def test_a_schema_in_a_grammar_is_exact():
    schema = '{"type": "object", "properties": {"a": {"maxLength": 2}}, "required": ["a"]}'
    reader = recogniser(Grammar(f'start: "x" %json {schema} /b?/', "lark"))
    assert reader.accepts('x{"a": "\\u00e9!"}')
    assert not reader.accepts('x{"a": "abc"}')
    assert not reader.accepts('x{"a": "a\n"}')


def test_an_anchor_in_a_grammar_holds():
    with pytest.raises(InvalidGrammarError, match="line 1 column 8: in this regex, nothing"):
        Grammar("start: /a$b/", "lark").rules(None)


def test_a_schema_that_cannot_be_enforced_is_refused_with_its_place():
    schema = '{"type": "array", "items": {"type": "string"}, "uniqueItems": true}'
    with pytest.raises(InvalidGrammarError, match="%json at /uniqueItems") as raised:
        Grammar(f"start: %json {schema}", "lark").rules(None)
    assert raised.value.where == "line 1 column 8"


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Grammar(" "), "grammar: rules are text, not ' '"),
        (
            lambda: Grammar('root ::= "a" missing').rules(None),
            "line 1 column 14: .*no rule missing",
        ),
        (lambda: Grammar("start: nothing", "lark").rules(None), "no rule nothing"),
        (lambda: Grammar('root ::= x\nx ::= "a" x').rules(None), "no finite text fits"),
        (lambda: Grammar('root ::= "a" Token(106)').rules(None), "names tokens"),
    ],
)
def test_what_is_no_grammar_says_why(make, problem):
    with pytest.raises(InvalidGrammarError, match=problem):
        make()


def test_the_key_tells_notations_apart():
    assert Grammar("root ::= x").key != Grammar("root ::= x", "lark").key
