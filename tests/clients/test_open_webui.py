"""Open WebUI: its requests in a chat with native tools, and the titles and tags after it.

It is not installed here, since it brings all of its own server. Bodies are as it makes them.
"""

import json

import httpx
import pytest
from turn_scripts import call, script

TEXT = "It is 21 degrees in Paris."
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Return the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def http(url):
    headers = {"Authorization": "Bearer none"}
    with httpx.Client(base_url=f"{url}/v1", headers=headers, timeout=100) as client:
        yield client


@pytest.fixture
def stream(http):
    """Send a chat, and return the text and the calls that its chunks add up to."""

    def sent(messages):
        body = {"model": "dlm", "messages": messages, "stream": True, "tools": [TOOL]}
        body |= {"stream_options": {"include_usage": True}, "temperature": 0.8}
        text, calls, usage = "", [], None
        with http.stream("POST", "/chat/completions", json=body) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
        assert lines.pop() == "[DONE]"
        for chunk in map(json.loads, lines):
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
                for piece in choice["delta"].get("tool_calls") or ():
                    if piece["index"] == len(calls):
                        calls.append(piece)
                    else:
                        function = calls[piece["index"]]["function"]
                        function["arguments"] += piece["function"]["arguments"]
        assert usage["total_tokens"] > 0
        return text, calls

    return sent


def test_a_chat_calls_a_tool_and_goes_on_with_its_result(stream):
    messages = [{"role": "user", "content": script([call("weather", city="Paris")], TEXT)}]
    text, calls = stream(messages)
    (made,) = calls
    assert json.loads(made["function"]["arguments"]) == {"city": "Paris"}
    messages.append({"role": "assistant", "content": text, "tool_calls": calls})
    messages.append({"role": "tool", "tool_call_id": made["id"], "content": "21 degrees"})
    assert stream(messages) == (TEXT, [])


def test_titles_and_tags_are_whole_answers(http):
    for answer in ({"title": "Paris"}, {"tags": ["Weather", "Paris"]}):
        messages = [{"role": "user", "content": script(json.dumps(answer))}]
        body = {"model": "dlm", "messages": messages, "stream": False}
        whole = http.post("/chat/completions", json=body | {"max_completion_tokens": 1000})
        assert json.loads(whole.json()["choices"][0]["message"]["content"]) == answer


def test_models_have_ids_by_which_they_are_listed(http):
    models = http.get("/models").json()["data"]
    assert "dlm" in [model["id"] for model in models]
    assert all(model.get("name", model["id"]) for model in models)
