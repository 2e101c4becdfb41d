"""LiteLLM: completions, responses, and Anthropic's route."""

import asyncio
import json
import os

import pytest
from turn_scripts import call, script

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it is fetched from the network otherwise
litellm = pytest.importorskip("litellm", reason="litellm is not installed")

TEXT = "It is 21 degrees in Paris."
CALL = [call("weather", city="Paris")]
WEATHER = {
    "name": "weather",
    "description": "Return the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
ROUTES = {"openai/dlm": "/v1", "hosted_vllm/dlm": "/v1", "anthropic/dlm": ""}


@pytest.fixture(autouse=True)
def quiet():
    litellm.telemetry = False


@pytest.fixture(params=ROUTES)
def complete(request, url):
    def complete(messages, **more):
        return litellm.completion(
            model=request.param,
            api_base=url + ROUTES[request.param],
            api_key="none",
            messages=messages,
            tools=[{"type": "function", "function": WEATHER}],
            **more,
        )

    return complete


def test_a_completion_calls_a_tool_and_answers_with_its_result(complete):
    messages = [{"role": "user", "content": script(CALL, TEXT)}]
    first = complete(messages).choices[0].message
    (made,) = first.tool_calls
    assert json.loads(made.function.arguments) == {"city": "Paris"}
    messages += [first, {"role": "tool", "tool_call_id": made.id, "content": "21"}]
    assert complete(messages).choices[0].message.content == TEXT


def test_a_stream_of_a_completion_adds_up(complete):
    messages = [{"role": "user", "content": script(CALL, TEXT)}]
    chunks = list(complete(messages, stream=True))
    first = litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message
    (made,) = first.tool_calls
    assert json.loads(made.function.arguments) == {"city": "Paris"}
    messages += [first, {"role": "tool", "tool_call_id": made.id, "content": "21"}]
    texts = [chunk.choices[0].delta.content or "" for chunk in complete(messages, stream=True)]
    assert "".join(texts) == TEXT


def test_a_response_calls_a_tool_and_answers_with_its_result(url):
    def respond(items):
        return litellm.responses(
            model="openai/dlm",
            api_base=f"{url}/v1",
            api_key="none",
            input=items,
            tools=[{"type": "function", **WEATHER}],
        )

    items = [{"role": "user", "content": script(CALL, TEXT)}]
    (made,) = respond(items).output
    assert json.loads(made.arguments) == {"city": "Paris"}
    items += [
        {
            "type": "function_call",
            "call_id": made.call_id,
            "name": made.name,
            "arguments": made.arguments,
        },
        {"type": "function_call_output", "call_id": made.call_id, "output": "21"},
    ]
    assert respond(items).output[0].content[0].text == TEXT


@pytest.mark.parametrize("model", ["anthropic/dlm", "openai/dlm"])
def test_a_message_of_anthropics_form_calls_a_tool(url, model):
    tool = {"name": "weather", "input_schema": WEATHER["parameters"]}
    route = "" if model.startswith("anthropic") else "/v1"
    create = litellm.anthropic.messages.acreate(
        model=model,
        api_base=url + route,
        api_key="none",
        max_tokens=200,
        messages=[{"role": "user", "content": script(CALL, TEXT)}],
        tools=[tool],
    )
    message = asyncio.run(create)
    used = [block for block in message["content"] if block["type"] == "tool_use"]
    assert [block["input"] for block in used] == [{"city": "Paris"}]
