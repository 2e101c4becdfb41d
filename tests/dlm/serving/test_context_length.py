"""Prompts and answers above the model's context: the error that clients look for."""

import re

import pytest
from asks import turn

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
LONG = {"tokenized": "word " * 2040, "not tokenized": "word " * 100_000}
RESPONSE, MESSAGE = "/v1/responses", "/v1/messages"


@pytest.mark.parametrize("text", LONG.values(), ids=[*LONG])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, lambda text: {"messages": turn(text)}, "messages"),
        (COMPLETION, lambda text: {"prompt": text}, "prompt"),
        (RESPONSE, lambda text: {"input": text}, "input"),
    ],
)
def test_a_prompt_above_the_context_has_the_code_that_clients_look_for(
    tiny, path, body, param, text, stream
):
    answer = tiny.http.post(path, json=body(text) | {"stream": stream})
    assert answer.status_code == 400
    error = answer.json()["error"]
    most = tiny.engine.model.max_positions
    assert f"This model's maximum context length is {most} tokens" in error["message"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)


@pytest.mark.parametrize("path", [CHAT, RESPONSE])
def test_an_answer_above_the_context_has_that_code_too(tiny, path):
    field = "max_output_tokens" if path == RESPONSE else "max_tokens"
    prompt = {"input": "hi"} if path == RESPONSE else {"messages": turn("hi")}
    error = tiny.http.post(path, json=prompt | {field: 3000}).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", field)


@pytest.mark.parametrize("text", LONG.values(), ids=[*LONG])
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_above_the_context_has_anthropic_s_words(tiny, text, stream):
    body = {"model": "tiny", "max_tokens": 9, "messages": turn(text), "stream": stream}
    answer = tiny.http.post(MESSAGE, json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    found = re.match(
        r"prompt is too long: (?:at least )?(\d+) tokens > (\d+) maximum", error["message"]
    )
    assert int(found[1]) > int(found[2]) > 1900
    assert "maximum context length is 2048 tokens" in error["message"]
