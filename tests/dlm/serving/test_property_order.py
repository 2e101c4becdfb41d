"""Answers whose properties come in another order than the schema's, over HTTP: none is lost."""

import json

import pytest
from scripted_model import ScriptedModel
from turn_scripts import call, script

from dlm import DecodeConfig, Engine

KINDS = {
    "name": {"type": "string"},
    "age": {"type": "integer"},
    "city": {"type": "string"},
    "home": {"type": "object", "properties": {"zip": {"type": "string"}, "no": {"type": "number"}}},
}
VALUE = {"city": "Oslo", "home": {"no": 4.5, "zip": "0150"}, "age": 61, "name": "Olga Lopez"}
TEXT = json.dumps(VALUE)
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


def schema_of(*required):
    return {"type": "object", "properties": KINDS, "required": list(required)}


def format_of(schema, **more):
    named = {"name": "person", "schema": schema} | more
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def outputs(**fields):
    return {"structured_outputs": fields}


ALL = schema_of(*KINDS)
BODIES = [
    (CHAT, format_of(schema_of())),
    (CHAT, format_of(schema_of(), strict=True)),
    (CHAT, format_of(schema_of("city", "home"))),
    (CHAT, format_of(schema_of("age"))),
    (CHAT, format_of(ALL) | outputs(property_order="any")),
    (CHAT, outputs(json=schema_of())),
    (CHAT, outputs(json=schema_of(), disable_additional_properties=False)),
    (CHAT, outputs(json=ALL, disable_additional_properties=False)),
    (CHAT, outputs(json=ALL, property_order="any")),
    (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "p", "schema": schema_of()}}}),
    (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": schema_of()}}}),
]


@pytest.fixture(scope="module")
def scripted_server(chat, serve):
    config = DecodeConfig()
    with serve(Engine(ScriptedModel(chat, config), chat, config)) as served:
        yield served


def answered(served, path, prompt, fields):
    body = {"model": "tiny", "seed": 1} | fields
    if path == RESPONSES:
        body |= {"input": prompt, "max_output_tokens": 200}
    else:
        body |= {"messages": [{"role": "user", "content": prompt}], "max_tokens": 200}
    reply = served.http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def content_of(path, answer):
    if path == RESPONSES:
        return answer["output"][-1]["content"][0]["text"]
    if path == MESSAGES:
        return answer["content"][-1]["text"]
    assert answer["choices"][0]["finish_reason"] == "stop"
    return answer["choices"][0]["message"]["content"]


@pytest.mark.parametrize(("path", "fields"), BODIES)
def test_an_answer_that_fits_its_schema_is_the_free_answer(scripted_server, path, fields):
    free, bound = (
        content_of(path, answered(scripted_server, path, script(TEXT), more))
        for more in ({}, fields)
    )
    assert (free, bound) == (TEXT, TEXT)


def test_the_schema_s_order_is_another_answer(scripted_server):
    fields = format_of(schema_of()) | outputs(property_order="schema")
    answer = answered(scripted_server, CHAT, script(TEXT), fields)
    assert content_of(CHAT, answer) != TEXT


@pytest.mark.parametrize(("required", "order"), [((), {}), ([*KINDS], {"property_order": "any"})])
def test_a_call_keeps_all_its_arguments_in_their_order(scripted_server, required, order):
    tool = {"name": "save", "parameters": schema_of(*required)}
    fields = {"tools": [{"type": "function", "function": tool}], "tool_choice": "required"}
    fields |= outputs(**order) if order else {}
    answer = answered(scripted_server, CHAT, script([call("save", **VALUE)]), fields)
    (called,) = answer["choices"][0]["message"]["tool_calls"]
    assert json.loads(called["function"]["arguments"]) == VALUE
    assert list(json.loads(called["function"]["arguments"])) == list(VALUE)
