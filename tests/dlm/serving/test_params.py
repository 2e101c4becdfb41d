"""A 400 says which field it is about, by the name that the client gave it."""

import json

import pytest

HI = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        ("/v1/chat/completions", {}, "messages", "messages is missing: it takes a list of"),
        ("/v1/chat/completions", HI | {"\ud800": 1}, "\\ud800", "\\ud800 is unknown here"),
        (
            "/v1/chat/completions",
            HI | {"max_completion_tokens": 9999},
            "max_completion_tokens",
            "14 prompt tokens leave 2016 for the answer, fewer than max_",
        ),
        (
            "/v1/chat/completions",
            HI | {"max_completion_tokens": 0},
            "max_completion_tokens",
            "max_completion_tokens is 0: it takes at least 1",
        ),
        (
            "/v1/chat/completions",
            HI | {"max_tokens": 9999},
            "max_tokens",
            "14 prompt tokens leave 2016 for the answer, fewer than max_",
        ),
        (
            "/v1/chat/completions",
            HI | {"regex": "a"},
            "regex",
            "regex is not supported: a regex goes",
        ),
        ("/v1/completions", {"prompt": " "}, "prompt", "prompt is ' ': it takes text that is"),
        (
            "/v1/completions",
            {"prompt": [10**9]},
            "prompt",
            "prompt: token 1000000000 is outside of 1536 tokens",
        ),
        ("/v1/completions", {"prompt": "a", "echo": True}, "echo", "echo is true, which is not"),
        ("/detokenize", {"tokens": [-1]}, "tokens", "tokens[0] is -1: it takes 0 to 1535"),
        ("/tokenize", HI | {"tools": [5]}, "tools", "tools[0] is 5: it takes an object"),
        (
            "/tokenize",
            HI | {"tools": [{"type": "function"}]},
            "tools",
            "tools[0].function is missing: it takes an object",
        ),
        (
            "/tokenize",
            HI | {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools",
            "tools: tools at /tools/0/function/name: a name is 1 to 64 letters",
        ),
    ],
)
def test_a_400_names_the_field_as_the_client_does(tiny, path, body, param, message):
    answer = tiny.http.post(path, content=json.dumps(body))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["message"].startswith(message)
