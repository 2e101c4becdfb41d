"""`/v1/responses` through the official client, against the built-in model."""

import re

import asks
import openai
import pytest
from asks import ASK, PERSON

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": asks.WEATHER,
}
FORMAT = {"type": "json_schema", "name": "x", "schema": PERSON}
SQL = {
    "type": "custom",
    "name": "sql",
    "format": {
        "type": "grammar",
        "syntax": "lark",
        "definition": 'start: "SELECT " NAME " FROM " NAME\nNAME: /[a-z]{1,6}/',
    },
}


def ask(served, given=ASK, **more):
    return served.client.responses.create(
        **{"model": "tiny", "input": given, "max_output_tokens": 96, "extra_body": {"seed": 1}}
        | more
    )


def test_a_call_its_result_and_a_text_are_one_conversation(tiny):
    question = "What is the weather in Lisbon for 3 days?"
    first = ask(tiny, question, tools=[WEATHER], tool_choice="required")
    (call,) = first.output
    assert (call.type, call.name) == ("function_call", "get_weather")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    stored = ask(tiny, [result], previous_response_id=first.id)
    items = [{"role": "user", "content": question}, call.to_dict(), result]
    sent = ask(tiny, items, store=False)
    assert sent.output_text == stored.output_text
    assert stored.previous_response_id == first.id
    usage = stored.usage
    assert usage.input_tokens == sent.usage.input_tokens
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    with pytest.raises(openai.NotFoundError):
        tiny.client.responses.retrieve(sent.id)


def test_input_of_a_custom_tool_obeys_its_grammar(tiny):
    answer = ask(tiny, "Select names.", tools=[SQL], tool_choice={"type": "custom", "name": "sql"})
    (call,) = answer.output
    assert call.type == "custom_tool_call"
    assert re.fullmatch("SELECT [a-z]{1,6} FROM [a-z]{1,6}", call.input)
    tools = [{"type": "custom", "custom": {"name": "sql", "format": SQL["format"]}}]
    chat = tiny.client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Select names."}],
        tools=tools,
        tool_choice="required",
        max_completion_tokens=200,
        parallel_tool_calls=False,
    )
    (chosen,) = chat.choices[0].message.tool_calls
    assert chosen.type == "custom"
    assert re.fullmatch("SELECT [a-z]{1,6} FROM [a-z]{1,6}", chosen.custom.input)


def test_a_tool_in_an_item_is_called_like_one_in_tools(tiny):
    question = {"role": "user", "content": "What is the weather in Lisbon for 3 days?"}
    more = {"tool_choice": "required", "parallel_tool_calls": False}
    item = {"type": "additional_tools", "role": "developer", "tools": [WEATHER]}
    found = ask(tiny, [item, question], **more)
    usual = ask(tiny, [question], tools=[WEATHER], **more)
    calls = [(one.name, one.arguments) for one in found.output]
    assert calls == [(one.name, one.arguments) for one in usual.output]
    assert found.usage.input_tokens == usual.usage.input_tokens
    items = tiny.http.get(f"/v1/responses/{found.id}/input_items").json()["data"]
    assert items[0] == item


def test_stored_responses_are_read_listed_and_deleted(tiny):
    kept = ask(tiny)
    client = tiny.client.responses
    assert client.retrieve(kept.id).to_dict() == kept.to_dict()
    (item,) = tiny.http.get(f"/v1/responses/{kept.id}/input_items").json()["data"]
    assert (item["role"], item["content"]) == ("user", ASK)
    client.delete(kept.id)
    for act in (client.retrieve, client.delete, client.input_items.list):
        with pytest.raises(openai.NotFoundError, match=kept.id):
            act(kept.id)
    with pytest.raises(openai.BadRequestError, match="send all items") as refused:
        ask(tiny, previous_response_id=kept.id)
    assert refused.value.param == "previous_response_id"


def test_input_tokens_are_those_of_the_response(serve_random):
    with serve_random() as served:
        count = served.client.responses.input_tokens.count
        first = ask(served, "What is the weather in Lisbon for 3 days?", instructions="Be brief.")
        for body in (
            {"input": ASK, "instructions": "Be brief."},
            {"input": [{"role": "user", "content": ASK}], "tools": [WEATHER]},
            {"input": ASK, "reasoning": {"effort": "low"}},
            {"input": "And in Oslo?", "previous_response_id": first.id},
        ):
            counted = count(model="tiny", **body)
            assert counted.object == "response.input_tokens"
            answer = ask(served, **{"given": body.pop("input"), "max_output_tokens": 8} | body)
            assert counted.input_tokens == answer.usage.input_tokens
        for body, kind, param in (
            ({"input": 5}, openai.BadRequestError, "input"),
            (
                {"input": ASK, "previous_response_id": "x"},
                openai.BadRequestError,
                "previous_response_id",
            ),
            ({"input": ASK, "model": "other"}, openai.NotFoundError, "model"),
        ):
            with pytest.raises(kind) as refused:
                count(**{"model": "tiny"} | body)
            assert refused.value.param == param


def test_a_conversation_is_not_compacted(tiny):
    reason = "/v1/responses/compact is not supported: .* send the items"
    with pytest.raises(openai.NotFoundError, match=reason):
        tiny.client.responses.compact(model="tiny", input=ASK)
    assert tiny.http.get("/v1/responses/compact").json()["error"]["code"] == 404


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": 5}, "input"),
        ({"background": True}, "background"),
        ({"max_output_tokens": 10**9}, "max_output_tokens"),
        ({"max_output_tokens": 3, "text": {"format": FORMAT}}, "max_output_tokens"),
        ({"model": "other"}, "model"),
    ],
)
def test_a_refused_body_raises_the_client_s_own_exception(tiny, body, param):
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as refused:
        ask(tiny, **{"extra_body": body})
    assert refused.value.param == param
