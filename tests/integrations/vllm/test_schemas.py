"""Schemas of many forms in vLLM: the answer is valid with the schema, and is not without it."""

import json
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest

PROMPT = "Extract invoice_id, paid as JSON. Invoice AK-4071 for Silver Robotics has been paid."


def closed(properties, **more):
    required = {"required": [*properties], "additionalProperties": False}
    return {"type": "object", "properties": properties, **required, **more}


SCHEMAS = {
    "nested": closed(
        {"a": closed({"b": closed({"c": {"type": "array", "items": {"type": "integer"}}})})}
    ),
    "references": closed(
        {"tree": {"$ref": "#/$defs/node"}},
        **{
            "$defs": {
                "node": closed(
                    {
                        "name": {"type": "string", "maxLength": 5},
                        "inner": {
                            "type": "array",
                            "items": {"$ref": "#/$defs/node"},
                            "maxItems": 2,
                        },
                    }
                )
            }
        },
    ),
    "map": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "string", "maxLength": 8}, {"type": "number"}, {"type": "null"}],
        "items": False,
        "minItems": 3,
    },
    "union": {
        "type": "array",
        "minItems": 2,
        "maxItems": 3,
        "items": {
            "anyOf": [
                closed({"kind": {"const": "a"}, "n": {"type": "integer"}}),
                closed({"kind": {"const": "b"}, "on": {"type": "boolean"}}),
                {"type": "null"},
            ]
        },
    },
    "patterns": closed(
        {
            "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
            "at": {"type": "string", "format": "date"},
        }
    ),
    "numbers": closed(
        {
            "x": {"type": "number", "minimum": 0.5, "exclusiveMaximum": 1},
            "n": {"multipleOf": 7, "type": "integer"},
        }
    ),
}
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "sequence",
        "elements": [
            {"type": "const_string", "value": "ID: "},
            {"type": "regex", "pattern": "[A-Z]{2}-[0-9]{4}"},
        ],
    },
}


def valid(text, schema):
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_answers_are_valid_with_their_schema_alone(server, stream):
    def ask(name, constrained):
        format = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMAS[name]}}
        more = {"response_format": format} if constrained else {}
        answer = server.chat(PROMPT, max_tokens=256, stream=stream, **more)
        if not stream:
            return answer.choices[0].message.content, answer.choices[0].finish_reason
        choices = [choice for chunk in answer for choice in chunk.choices]
        text = "".join(choice.delta.content or "" for choice in choices)
        return text, choices[-1].finish_reason

    with ThreadPoolExecutor(8) as threads:
        bound = dict(zip(SCHEMAS, threads.map(lambda name: ask(name, True), SCHEMAS), strict=True))
        free = dict(zip(SCHEMAS, threads.map(lambda name: ask(name, False), SCHEMAS), strict=True))
    for name, (text, reason) in bound.items():
        assert valid(text, SCHEMAS[name]), (name, text)
        assert reason in ("stop", "length"), name
    assert sum(reason == "stop" for _, reason in bound.values()) > len(SCHEMAS) / 2
    assert not [name for name, (text, _) in free.items() if valid(text, SCHEMAS[name])]


def test_a_structural_tag_is_kept_and_a_plain_answer_is_none(server):
    bound = server.chat(PROMPT, response_format=TAG).choices[0]
    text = bound.message.content
    assert text.startswith("ID: ")
    assert bound.finish_reason == "stop"
    assert len(text) == len("ID: AK-4071")
    assert not server.chat(PROMPT).choices[0].message.content.startswith("ID: ")


def test_errors_name_the_field_of_the_client(server):
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/nope"}}}
    with pytest.raises(Exception, match=r"response_format\.json_schema\.schema"):
        server.chat(PROMPT, response_format=bad)
    with pytest.raises(Exception, match="prompt_logprobs"):
        server.chat(PROMPT, response_format=TAG, extra_body={"prompt_logprobs": 1})
    assert server.chat(PROMPT, response_format=TAG, seed=7).choices[0].finish_reason == "stop"


LOST = {"type": "object", "properties": {"x": {"$ref": "#/nope"}}}
TAGS = {
    "type": "object",
    "properties": {"x": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
}


@pytest.mark.parametrize(
    ("names", "parameters", "more"),
    [
        (["a"], LOST, {}),
        (["a"], TAGS, {}),
        (["a", "a"], TAGS, {}),
        (["a name"], TAGS, {}),
        (["a"], TAGS, {"stop": ["zzz"]}),
    ],
)
def test_lax_tools_are_served_and_required_ones_are_refused(server, names, parameters, more):
    tools = [
        {"type": "function", "function": {"name": name, "parameters": parameters}} for name in names
    ]
    answer = server.chat("Hello.", tools=tools, max_tokens=32, **more).choices[0]
    assert answer.finish_reason in ("stop", "length", "tool_calls")
    with pytest.raises(Exception, match="400"):
        server.chat("Hello.", tools=tools, tool_choice="required", max_tokens=32, **more)
