"""Another model than the plugin's, an autoregressive one, in an SGLang that has the plugin."""

import json
import re

import jsonschema
import llama
import pytest
from conftest import TINY, json_schema, object_of, served

SCHEMA = object_of({"a": {"type": "integer"}, "b": {"type": "boolean"}})


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """A server with the plugin and one without it."""
    model = llama.write(TINY, tmp_path_factory.mktemp("llama"))
    both = [
        served(model, tmp_path_factory.mktemp("other"), plugin=plugin) for plugin in (True, False)
    ]
    yield [next(server) for server in both]
    for server in both:
        server.close()


def test_its_constraints_and_its_free_answers_are_those_of_sglang(servers):
    bodies = [
        {"response_format": json_schema(SCHEMA), "max_tokens": 200},
        {"response_format": json_schema(SCHEMA), "stop": ["zzz"], "max_tokens": 200},
        {"regex": "[a-c]{3}"},
        {"ebnf": 'root ::= "a" "b"'},
        {},
        {"ignore_eos": True, "max_tokens": 20},
    ]
    answers = [
        [server.choice("Hello.", temperature=0, **body) for server in servers] for body in bodies
    ]
    for with_plugin, without in answers:
        assert with_plugin == without
    text = answers[0][0]["message"]["content"]
    if answers[0][0]["finish_reason"] == "stop":
        jsonschema.validate(json.loads(text), SCHEMA)
    assert text.startswith("{")
    assert re.fullmatch("[a-c]{3}", answers[2][0]["message"]["content"])
    for server in servers:
        assert server.is_well()
        assert "dlm:" not in server.log.read_text()
