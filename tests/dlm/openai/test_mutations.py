"""Bodies that went wrong in some place: a generation, or a `RequestError`, and nothing else."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlm import Policy, RequestError
from dlm.openai.answers import describe_error
from dlm.openai.other_fields import NEUTRAL
from dlm.openai.requests import ChatBody, CompletionBody, Generation, chat_of, completion_of

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
BODY: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
    ],
    "tools": [TOOL],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [TOOL]},
    },
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    "reasoning_effort": "low",
    "chat_template_kwargs": {"enable_thinking": True},
    "stream": True,
    "stream_options": {"include_usage": True},
    "n": 2,
    "seed": 1,
    "temperature": 0.5,
    "max_tokens": 9,
}
PLAIN = [None, True, 0, -1, 1.5, 10**30, 1e308, "", "a", "\ud800", "none", [], [[]], ["a"], {}]
ODD = [{"": None}, {"type": "function"}, {"\ud800": 1}, [{"type": "text"}], ["a"] * 2000]
STRANGE = st.sampled_from([*PLAIN, *ODD])
NAMES = {*ChatBody.names(), *CompletionBody.names(), *NEUTRAL}
KEYS = st.sampled_from(sorted({*NAMES, "guided_json", "x", "\ud800"}))


def places(value, path=()):
    """Ways to everything within `value`."""
    found = [path] if path else []
    if isinstance(value, list):
        value = dict(enumerate(value))
    for key, inner in value.items() if isinstance(value, dict) else ():
        found += places(inner, (*path, key))
    return found


PLACES = places(BODY)


@settings(max_examples=600)
@given(
    changes=st.lists(st.tuples(st.sampled_from(PLACES), STRANGE), max_size=2),
    more=st.dictionaries(KEYS, STRANGE, max_size=2),
    read=st.sampled_from([chat_of, completion_of]),
)
def test_a_mutated_body_is_read_or_refused(changes, more, read):
    body = json.loads(json.dumps(BODY)) | more
    for path, value in changes:
        inside: Any = body
        try:
            for key in path[:-1]:
                inside = inside[key]
            inside[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # another change took the place away
    try:
        assert isinstance(read(body, Policy()), Generation)
    except RequestError as error:
        json.dumps(describe_error(error), ensure_ascii=False).encode()  # it can be sent


def test_the_body_that_is_mutated_is_a_good_one():
    assert len(chat_of(BODY, Policy()).requests) == 2
    with pytest.raises(RequestError):
        completion_of(BODY, Policy())
