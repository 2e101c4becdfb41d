"""Grammars that fail, and hostile requests: the others go on, and the server stays up."""

import json
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest
from conftest import SCHEMAS, diffusion, json_schema, served

_FAILS = 77  # tokens of a budget


@pytest.fixture(scope="module", params=["--dllm-fdfo", "--no-dllm-fdfo"])
def failing(request, model, tmp_path_factory):
    """A server in which the grammars of requests with one budget raise in a step."""
    folder = tmp_path_factory.mktemp("failing")
    flags = diffusion(folder, "LowConfidence", 4, request.param)
    yield from served(model, folder, flags=flags, variables={"DLM_TEST_FAILS": str(_FAILS)})


def test_a_request_whose_grammar_raises_in_a_step_ends_alone(failing):
    def ask(i):
        tokens = _FAILS if i % 3 == 1 else _FAILS + 1
        bound = {"response_format": json_schema(SCHEMAS[0])} if i % 3 else {}
        return failing.chat("word " * (i + 1), max_tokens=tokens, **bound)

    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(ask, range(9)))
    for i, answer in enumerate(answers):
        if i % 3 == 1:
            assert answer.status_code == 500
            assert "a bug, by the test" in answer.text
        else:
            assert answer.status_code == 200, answer.text
        if i % 3 == 2:
            content = answer.json()["choices"][0]["message"]["content"]
            jsonschema.validate(json.loads(content), SCHEMAS[0])
    assert failing.chat("x", max_tokens=8).status_code == 200


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
