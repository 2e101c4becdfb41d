"""Answers that max_tokens has squeezed, in three forms, whole and streamed."""

import json

import pytest
from exhaustive import by_default
from scripted_model import ScriptedModel
from turn_scripts import call, script

from dlm import Autoregressive, Diffusion, Policy
from dlm.config import DecodeConfig

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
FORMS = [CHAT, RESPONSES, MESSAGES]
DECODINGS = {"canvases": Diffusion(), "left to right": Autoregressive()}
# A form writes what a result says, however it was decoded.
IN_EACH_FORM = pytest.mark.parametrize(
    ("served", "path"),
    by_default(
        [
            *(("left to right", path) for path in FORMS),
            *(("canvases", path) for path in (RESPONSES, CHAT, MESSAGES)),
        ],
        4,
    ),
    indirect=["served"],
)
ITEMS = {
    "type": "object",
    "properties": {"items": {"type": "array", "items": {"type": "string"}}},
    "required": ["items"],
    "additionalProperties": False,
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LIST = '{"items": ["apples", "pears", "plums", "cherries"]}'
SHORT, COMPLETE = ("length", "incomplete", "max_tokens"), ("stop", "completed", "end_turn")
CALLED = ("tool_calls", "completed", "tool_use")


@pytest.fixture(scope="module")
def served(request, chat, serve, engine_of):
    model, policy = ScriptedModel(chat, DecodeConfig()), Policy()
    options = {"policy": policy, "slots": 2, "decoding": DECODINGS[request.param]}
    with serve(engine_of(model, DecodeConfig(), **options)) as running:
        yield running


def schema_of(path):
    fields = {"type": "json_schema", "schema": ITEMS}
    return {
        CHAT: {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": ITEMS},
            }
        },
        RESPONSES: {"text": {"format": fields | {"name": "x"}}},
        MESSAGES: {"output_config": {"format": fields}},
    }[path]


def tools_of(path):
    function = {"name": "get_weather", "parameters": CITY}
    return {
        CHAT: [{"type": "function", "function": function}],
        RESPONSES: [{"type": "function", **function}],
        MESSAGES: [{"name": "get_weather", "input_schema": CITY}],
    }[path]


def body_of(path, prompt, max_tokens, **more):
    messages = {"messages": [{"role": "user", "content": prompt}]}
    return {
        CHAT: messages | {"max_tokens": max_tokens},
        RESPONSES: {"input": prompt, "max_output_tokens": max_tokens},
        MESSAGES: messages | {"max_tokens": max_tokens},
    }[path] | more


def whole(path, answer):
    """Return the text, the calls' arguments, and why an answer ended."""
    if path == CHAT:
        (choice,) = answer["choices"]
        calls = choice["message"].get("tool_calls") or []
        arguments = [json.loads(one["function"]["arguments"]) for one in calls]
        return choice["message"]["content"] or "", arguments, choice["finish_reason"]
    if path == RESPONSES:
        details = answer["incomplete_details"]
        if answer["status"] == "incomplete":
            assert details == {"reason": "max_output_tokens"}
        else:
            assert details is None
        assert [item["status"] for item in answer["output"][-1:]] in ([], [answer["status"]])
        texts = [part["text"] for item in answer["output"] for part in item.get("content", [])]
        calls = [item for item in answer["output"] if item["type"] == "function_call"]
        return "".join(texts), [json.loads(one["arguments"]) for one in calls], answer["status"]
    texts = [block["text"] for block in answer["content"] if block["type"] == "text"]
    calls = [block["input"] for block in answer["content"] if block["type"] == "tool_use"]
    return "".join(texts), calls, answer["stop_reason"]


def streamed(path, text):
    """Return the same of a stream's events."""
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    if path == CHAT:
        deltas = [event["choices"][0] for event in events]
        written = "".join(one["delta"].get("content") or "" for one in deltas)
        pieces = [call for one in deltas for call in one["delta"].get("tool_calls", [])]
        arguments = [""] * len({one["index"] for one in pieces})
        for one in pieces:
            arguments[one["index"]] += one["function"]["arguments"]
        return written, [json.loads(one) for one in arguments], deltas[-1]["finish_reason"]
    if path == RESPONSES:
        kind = "response.output_text.delta"
        written = "".join(event["delta"] for event in events if event["type"] == kind)
        response = events[-1]["response"]
        assert events[-1]["type"] == f"response.{response['status']}"
        assert whole(path, response)[0] == written
        return whole(path, response)
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    written = "".join(delta.get("text", "") for delta in deltas)
    arguments = "".join(delta.get("partial_json", "") for delta in deltas)
    (reason,) = [e["delta"]["stop_reason"] for e in events if e["type"] == "message_delta"]
    return written, [json.loads(arguments)] if arguments else [], reason


def answer(served, path, body):
    """Return an answer, which must be the same whole and streamed."""
    found = whole(path, served.http.post(path, json=body).json())
    stream = served.http.post(path, json=body | {"stream": True})
    assert streamed(path, stream.text) == found
    return found


@IN_EACH_FORM
def test_a_list_that_max_tokens_has_squeezed_is_valid_and_not_called_complete(served, path):
    at = FORMS.index(path)
    text, _, reason = answer(served, path, body_of(path, script(LIST), 14, **schema_of(path)))
    assert reason == SHORT[at]
    items = json.loads(text)["items"]
    assert "".join(items) != "applespearsplumscherries"
    assert "applespearsplumscherries".startswith("".join(items))
    text, _, reason = answer(served, path, body_of(path, script(LIST), 80, **schema_of(path)))
    assert (text, reason) == (LIST, COMPLETE[at])


@IN_EACH_FORM
def test_a_call_that_max_tokens_has_squeezed_is_none_to_run(served, path):
    at, prompt = FORMS.index(path), script([call("get_weather", city="Oslo and its hills")])
    for max_tokens, reason in ((16, SHORT[at]), (60, CALLED[at])):
        body = body_of(path, prompt, max_tokens, tools=tools_of(path))
        text, calls, found = answer(served, path, body)
        assert (text, found) == ("", reason)
        (arguments,) = calls
        assert "Oslo and its hills".startswith(arguments["city"])
        assert (arguments["city"] == "Oslo and its hills") == (max_tokens == 60)


@IN_EACH_FORM
def test_a_call_that_does_not_fit_max_tokens_leaves_no_text(served, path):
    prompt = script([call("get_weather", city="Oslo")])
    for max_tokens in (2, 8):
        body = body_of(path, prompt, max_tokens, tools=tools_of(path))
        assert answer(served, path, body) == ("", [], SHORT[FORMS.index(path)])


@IN_EACH_FORM
def test_text_beside_tools_that_max_tokens_cuts_is_not_called_complete(served, path):
    at, text = FORMS.index(path), "It is sunny in Oslo and on all its hills."
    for fields in ({}, {"tools": tools_of(path)}):
        found, _, reason = answer(served, path, body_of(path, script(text), 5, **fields))
        assert reason == SHORT[at]
        assert text.startswith(found)
        found, _, reason = answer(served, path, body_of(path, script(text), 60, **fields))
        assert (found, reason) == (text, COMPLETE[at])


@IN_EACH_FORM
def test_a_required_call_that_does_not_fit_is_refused_with_the_tokens_that_it_takes(served, path):
    choice = {"type": "any"} if path == MESSAGES else "required"
    prompt = script([call("get_weather", city="Oslo")])
    body = body_of(path, prompt, 8, tools=tools_of(path), tool_choice=choice)
    refused = served.http.post(path, json=body)
    assert refused.status_code == 400
    assert "takes 14 tokens, more than 8" in refused.json()["error"]["message"]


@pytest.mark.parametrize("served", DECODINGS, indirect=True)
def test_each_of_several_answers_says_whether_it_was_squeezed(served):
    body = body_of(CHAT, script(LIST), 14, n=2, **schema_of(CHAT))
    found = served.http.post(CHAT, json=body).json()["choices"]
    assert [one["finish_reason"] for one in found] == ["length", "length"]
