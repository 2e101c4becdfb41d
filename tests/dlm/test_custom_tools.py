"""Custom tools whose input has a grammar, under models that want other texts."""

import re

import pytest
from doubles import Obsessed, Random
from exhaustive import by_default
from values import PROMPT, V

from dlm import InvalidGrammarError, Policy, Request, RequestError, Tools
from dlm.openai.constraint import constraint_of

SQL = r"""
start: "SELECT " columns " FROM " NAME (" WHERE " test (" AND " test)*)? ";"
columns: "*" | NAME ("," NAME)*
test: NAME "=" (NUMBER | STRING)
NAME: /[a-z_]{1,8}/
NUMBER: /-?[0-9]{1,6}/
STRING: "'" /[^'\n]{0,12}/ "'"
"""
PATCH = r"""
start: begin hunk+ end
begin: "*** Begin Patch\n"
end: "*** End Patch" "\n"?
hunk: "*** Add File: " FILE "\n" added+ | "*** Delete File: " FILE "\n"
    | "*** Update File: " FILE "\n" "@@" "\n" change+
added: "+" LINE "\n"
change: ("+" | "-" | " ") LINE "\n"
FILE: /[a-z]{1,8}(\/[a-z]{1,8}){0,2}/
LINE: /[^\n]{0,20}/
"""
NESTED = r"""
start: value
value: "(" value* ")" | "\"" /[^"\\\n]{0,6}/ "\"" | "<|tool_call>" | "𝄞"
"""


def is_nested(text):
    """Whether NESTED accepts a text, by a parser of its own."""
    depth, at, values = 0, 0, 0
    while at < len(text):
        found = re.compile(r'[()]|"[^"\\\n]{0,6}"|<\|tool_call>|𝄞').match(text, at)
        if found is None:
            return False
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        values += depth == 0
        if depth < 0:
            return False
        at = found.end()
    return depth == 0 and values == 1


_NAME = "[a-z_]{1,8}"
_TEST = rf"{_NAME}=(?:-?[0-9]{{1,6}}|'[^'\n]{{0,12}}')"
_FILE = r"[a-z]{1,8}(?:/[a-z]{1,8}){0,2}"
IS_SQL = re.compile(
    rf"SELECT (?:\*|{_NAME}(?:,{_NAME})*) FROM {_NAME}(?: WHERE {_TEST}(?: AND {_TEST})*)?;"
)
IS_PATCH = re.compile(
    rf"\*\*\* Begin Patch\n(?:\*\*\* Add File: {_FILE}\n(?:\+[^\n]{{0,20}}\n)+"
    rf"|\*\*\* Delete File: {_FILE}\n"
    rf"|\*\*\* Update File: {_FILE}\n@@\n(?:[-+ ][^\n]{{0,20}}\n)+)+\*\*\* End Patch\n?"
)
GRAMMARS = {
    "a query": ("lark", SQL, IS_SQL.fullmatch),
    "a patch": ("lark", PATCH, IS_PATCH.fullmatch),
    "brackets": ("lark", NESTED, is_nested),
    "a regex": ("regex", '[A-Z"\\\\{}]{1,9}\n?', re.compile('[A-Z"\\\\{}]{1,9}\n?').fullmatch),
}
MODELS = {
    "noise": lambda: Random(V, 1),
    "loud noise": lambda: Random(V, 2, scale=60.0),
    "its end": lambda: Obsessed(V, [106]),
    "the quote": lambda: Obsessed(V, [52]),
    "anything else": lambda: Obsessed(V, [5, 6, 7]),
}


def tool(name, syntax, definition):
    grammar = {"syntax": syntax, "definition": definition}
    return {
        "type": "custom",
        "custom": {"name": name, "format": {"type": "grammar", "grammar": grammar}},
    }


@pytest.mark.parametrize("wanted", by_default(MODELS, 2))
@pytest.mark.parametrize("name", GRAMMARS)
def test_inputs_obey_their_grammar_whatever_the_model_wants(engine_of, name, wanted):
    syntax, definition, accepted = GRAMMARS[name]
    plain = {"type": "custom", "custom": {"name": "plain"}}
    tools = [tool("made", syntax, definition), plain]
    for choice, budget in (("made", 60), ("made", 120), (None, 120)):
        spec = Tools(tools, "required", choice)
        request = Request(token_ids=PROMPT, constraint=spec, max_tokens=budget, seed=budget)
        result = engine_of(MODELS[wanted]()).generate(request)
        assert result.complete
        assert result.stats.tokens <= budget
        assert result.tool_calls
        for call in result.tool_calls:
            assert call.arguments.keys() == {"input"}
            assert call.name == "plain" or accepted(call.arguments["input"])


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        ("start: (", "line 1 column"),
        ('x: "a"', "start"),
        ("start: start", "start"),
        ('start: "a" start', "start"),
    ],
)
def test_an_invalid_grammar_is_refused_with_its_tool_and_place(engine_of, definition, problem):
    spec = Tools([{"type": "custom", "custom": {"name": "a"}}, tool("bad", "lark", definition)])
    with pytest.raises(RequestError) as error:
        engine_of(Random(V, 1)).generate(Request(token_ids=PROMPT, constraint=spec))
    for part in ("'bad'", "/tools/1/custom/format/definition", problem):
        assert part in str(error.value)


def test_a_regex_and_a_syntax_are_checked_when_tools_are_made():
    for syntax, definition in (("regex", "("), ("ebnf", 'root ::= "a"'), ("lark", None)):
        with pytest.raises(InvalidGrammarError, match="/tools/0/custom/format"):
            Tools([tool("bad", syntax, definition)])
    with pytest.raises(InvalidGrammarError, match="cannot enforce a tool's grammar"):
        Tools([tool("bad", "regex", "a")], format="qwen3_coder")


def test_grammars_of_clients_are_served_within_their_policy():
    body = {"tools": [tool("made", "regex", "a")]}
    large = {"tools": [tool("made", "lark", f'start: "{"a" * 70_000}"')]}
    assert constraint_of(body, Policy.server(True)).custom.keys() == {"made"}
    with pytest.raises(RequestError, match="too large"):
        constraint_of(large, Policy.server(True))
    with pytest.raises(RequestError, match="a regex is not served here"):
        constraint_of(body, Policy.server("data"))
