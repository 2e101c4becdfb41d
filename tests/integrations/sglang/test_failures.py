"""Grammars that fail, and hostile requests: the others go on, and the server stays up."""

import pytest
from conftest import SCHEMAS, fails_alone, json_schema


def test_a_request_whose_grammar_raises_in_a_step_ends_alone(server):
    fails_alone(server)


def nested(levels):
    schema = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


HOSTILE = {
    "huge": json_schema({"enum": ["x" * 40 + str(i) for i in range(20000)]}),
    "deep": json_schema(nested(300)),
    "loop": json_schema({"$ref": "#"}),
    "loop of two": json_schema(
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    ),
    "endless": json_schema(
        {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}
    ),
    "states": json_schema({"type": "string", "pattern": "^(a|b)*a(a|b){40}$"}),
    "nul": json_schema({"const": "a\x00b"}),
    "surrogate": json_schema({"const": "\ud800"}),
    "number": json_schema({"type": "integer", "minimum": 10**400}),
    "no schema": {"type": "json_schema", "json_schema": {"name": "x", "schema": 7}},
    "tag": {"type": "structural_tag", "format": {"type": "nothing"}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_constraints_are_refused_or_kept(server, name):
    answer = server.chat("x", response_format=HOSTILE[name], max_tokens=64)
    assert answer.status_code in (200, 400), answer.text
    assert server.chat("x", response_format=json_schema(SCHEMAS[0])).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 10**400},
        {"max_tokens": -1},
        {"max_tokens": 0},
        {"regex": "(" * 5000},
        {"regex": "(a{999}){999}"},
        {"ebnf": "root ::= root"},
        {"ebnf": 'root ::= "a" missing'},
        {"regex": 7},
        {"grammar": "x", "grammar_key": ["json", "{}"], "dlm": {"rules": "x"}},
        {"custom_params": {"thinking_budget": "x"}, "regex": "a"},
        {"custom_params": {"thinking_budget": -5}, "regex": "a"},
        {"regex": "a", "ebnf": 'root ::= "b"'},
        {"regex": ""},
    ],
    ids=str,
)
def test_forged_and_senseless_fields_are_answered_and_the_server_stays_up(server, body):
    answer = server.post(messages=[{"role": "user", "content": "x"}], **body)
    assert answer.status_code in (200, 400, 422, 500)
    assert server.chat("x", response_format=json_schema(SCHEMAS[0])).status_code == 200
