"""Answers that `max_tokens` cuts short: complete and valid, and every API of vLLM says so."""

import json

import httpx
import jsonschema
import pytest
from test_tools import post

FRUITS = {
    "type": "object",
    "properties": {"items": {"type": "array", "items": {"type": "string"}}},
    "required": ["items"],
    "additionalProperties": False,
}
LIST = (
    "Extract items as JSON. The list has apples, pears, plums, grapes, cherries, lemons, oranges "
    "and melons."
)
NOTE = {
    "type": "object",
    "properties": {"text": {"type": "string", "minLength": 1}},
    "required": ["text"],
    "additionalProperties": False,
}
NAMED = "Note the names of Alexandria, Bartholomew, Christopher, Dorothea and Emmanuel."


def least(server, **body):
    """Return the tokens of the shortest answer, from the refusal of a smaller budget."""
    messages = [{"role": "user", "content": "x"}]
    answer = httpx.post(
        f"{server.url}/v1/chat/completions",
        json={"model": "tiny", "messages": messages, "max_tokens": 1, **body},
        timeout=600,
    )
    assert answer.status_code == 400
    return int(answer.json()["error"]["message"].split("shortest answer takes ")[1].split()[0])


def text_of_chat(server, schema, tokens, stream):
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    messages = [{"role": "user", "content": LIST}]
    body = {"messages": messages, "response_format": format, "max_tokens": tokens}
    answer = post(server, "/v1/chat/completions", **body, stream=stream)
    if not stream:
        choice = answer["choices"][0]
        return choice["message"]["content"], choice["finish_reason"]
    choices = [choice for event in answer for choice in event["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, choices[-1]["finish_reason"]


def text_of_responses(server, schema, tokens, stream):
    format = {"type": "json_schema", "name": "x", "schema": schema}
    body = {"input": LIST, "text": {"format": format}, "max_output_tokens": tokens}
    answer = post(server, "/v1/responses", **body, stream=stream)
    answer = answer[-1]["response"] if stream else answer
    text = "".join(
        part["text"]
        for item in answer["output"]
        if item["type"] == "message"
        for part in item["content"]
    )
    reason = (answer["incomplete_details"] or {}).get("reason")
    return text, {"max_output_tokens": "length", None: "stop"}[reason]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("ask", [text_of_chat, text_of_responses])
def test_a_text_that_its_budget_cuts_short_is_valid_and_ends_with_length(server, ask, stream):
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": FRUITS}}
    shortest = least(server, response_format=format)
    for tokens in (shortest, 16, 20, 200):
        text, reason = ask(server, FRUITS, tokens, stream)
        jsonschema.validate(json.loads(text), FRUITS)
        assert reason == ("stop" if tokens == 200 else "length"), (tokens, text)


def call_of_chat(server, tokens, stream, choice):
    tool = {"type": "function", "function": {"name": "note", "parameters": NOTE}}
    messages = [{"role": "user", "content": NAMED}]
    body = {"messages": messages, "tools": [tool], "tool_choice": choice, "max_tokens": tokens}
    answer = post(server, "/v1/chat/completions", **body, stream=stream)
    choices = answer["choices"] if not stream else [c for e in answer for c in e["choices"]]
    parts = [choice["delta" if stream else "message"] for choice in choices]
    calls = [call for part in parts for call in part.get("tool_calls") or ()]
    return "".join(c["function"].get("arguments") or "" for c in calls), choices[-1][
        "finish_reason"
    ]


def call_of_responses(server, tokens, stream, choice):
    tool = {"type": "function", "name": "note", "parameters": NOTE}
    body = {"input": NAMED, "tools": [tool], "tool_choice": choice, "max_output_tokens": tokens}
    answer = post(server, "/v1/responses", **body, stream=stream)
    answer = answer[-1]["response"] if stream else answer
    calls = [item["arguments"] for item in answer["output"] if item["type"] == "function_call"]
    reason = (answer["incomplete_details"] or {}).get("reason")
    return "".join(calls), {"max_output_tokens": "length", None: "stop"}[reason]


def call_of_messages(server, tokens, stream, choice):
    choice = {"required": {"type": "any"}, "auto": {"type": "auto"}}[choice]
    tool = {"name": "note", "input_schema": NOTE}
    messages = [{"role": "user", "content": NAMED}]
    body = {"messages": messages, "tools": [tool], "tool_choice": choice, "max_tokens": tokens}
    answer = post(server, "/v1/messages", **body, stream=stream)
    if not stream:
        calls = [json.dumps(b["input"]) for b in answer["content"] if b["type"] == "tool_use"]
        return "".join(calls), {"max_tokens": "length"}.get(answer["stop_reason"], "stop")
    deltas = [event["delta"] for event in answer if event["type"] == "content_block_delta"]
    (end,) = [event["delta"] for event in answer if event["type"] == "message_delta"]
    arguments = "".join(delta.get("partial_json", "") for delta in deltas)
    return arguments, {"max_tokens": "length"}.get(end["stop_reason"], "stop")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("ask", [call_of_chat, call_of_responses, call_of_messages])
def test_a_call_that_its_budget_cuts_short_ends_with_length(server, ask, stream):
    tool = {"type": "function", "function": {"name": "note", "parameters": NOTE}}
    shortest = least(server, tools=[tool], tool_choice="required")
    for choice in ("required", "auto"):
        for tokens in (shortest, shortest + 1, shortest + 3):
            arguments, reason = ask(server, tokens, stream, choice)
            if arguments:
                jsonschema.validate(json.loads(arguments), NOTE)
            assert arguments or choice == "auto"
            if choice == "required":
                assert reason == "length", (tokens, arguments)
