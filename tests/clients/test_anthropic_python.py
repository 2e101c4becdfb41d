"""anthropic-python: messages, their streams, tools, types and errors."""

from collections.abc import Iterator

import anthropic
import pytest
from pydantic import BaseModel
from turn_scripts import call, script, thought

TOOL = {
    "name": "weather",
    "description": "Return the weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}
WANTED = {"city": "Paris", "days": 2}
CALL = [call("weather", **WANTED)]
TEXT = "It is 21 degrees in Paris."
OLGA = '{"name": "Olga", "age": 61}'


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture(scope="module")
def client(url) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as made:
        yield made


def ask(*steps):
    return {
        "model": "dlm",
        "max_tokens": 200,
        "messages": [{"role": "user", "content": script(*steps)}],
    }


def with_result(body, message, text="21", **more):
    """Return `body` with the message and the result of its one call."""
    (used,) = [block for block in message.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": used.id, "content": text, **more}
    turns = [
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    return body | {"messages": [*body["messages"], *turns]}


def test_a_message_is_text(client):
    message = client.messages.create(**ask(TEXT))
    assert [block.text for block in message.content] == [TEXT]
    assert message.stop_reason == "end_turn"
    assert message.usage.input_tokens > 0


def test_a_message_calls_a_tool_and_answers_with_its_result(client):
    body = ask(CALL, TEXT) | {"tools": [TOOL], "system": "You know the weather."}
    first = client.messages.create(**body)
    assert first.stop_reason == "tool_use"
    assert [(block.name, block.input) for block in first.content] == [("weather", WANTED)]
    last = client.messages.create(**with_result(body, first))
    assert (last.stop_reason, last.content[0].text) == ("end_turn", TEXT)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_tool_is_called_by_choice(client, choice):
    body = ask(CALL) | {"tools": [TOOL], "tool_choice": choice}
    (used,) = client.messages.create(**body).content
    assert used.input == WANTED


def test_a_result_that_is_an_error_is_answered(client):
    body = ask(CALL, TEXT) | {"tools": [TOOL]}
    first = client.messages.create(**body)
    last = client.messages.create(**with_result(body, first, "no such city", is_error=True))
    assert last.content[0].text == TEXT


def test_a_stream_calls_a_tool_and_answers_with_its_result(client):
    body = ask(CALL, TEXT) | {"tools": [TOOL]}
    with client.messages.stream(**body) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        first = stream.get_final_message()
    assert pieces
    assert (first.stop_reason, first.content[0].input) == ("tool_use", WANTED)
    with client.messages.stream(**with_result(body, first)) as stream:
        assert "".join(stream.text_stream) == TEXT
        assert stream.get_final_message().usage.output_tokens > 0


def test_the_runner_of_tools_runs_them_until_the_last_message(client):
    seen = []

    @anthropic.beta_tool
    def weather(city: str) -> str:
        """Return the weather of a city.

        Args:
            city: The city's name.
        """
        seen.append(city)
        return "21"

    body = ask([call("weather", city="Paris")], TEXT) | {"tools": [weather]}
    last = client.beta.messages.tool_runner(**body).until_done()
    assert seen == ["Paris"]
    assert last.content[0].text == TEXT


def test_a_message_is_parsed_as_a_type(client):
    message = client.messages.parse(**ask(OLGA), output_format=Person)
    assert message.parsed_output == Person(name="Olga", age=61)


def test_a_format_of_the_output_config_constrains_the_text(client):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    config = {"format": {"type": "json_schema", "schema": schema}}
    message = client.messages.create(**ask(OLGA), output_config=config)
    assert message.content[0].text == OLGA


@pytest.mark.parametrize(
    "thinking", [{"type": "enabled", "budget_tokens": 100}, {"type": "adaptive"}]
)
def test_thinking_is_a_block_that_can_be_sent_back(client, thinking):
    steps = thought("Paris it is.", CALL), thought("It is warm.", TEXT)
    body = ask(*steps) | {"tools": [TOOL], "thinking": thinking}
    first = client.messages.create(**body)
    assert [block.type for block in first.content] == ["thinking", "tool_use"]
    assert first.content[0].thinking == "Paris it is."
    with client.messages.stream(**with_result(body, first)) as stream:
        pieces = [event.thinking for event in stream if event.type == "thinking"]
        last = stream.get_final_message()
    assert "".join(pieces) == last.content[0].thinking == "It is warm."
    assert last.content[1].text == TEXT


def test_an_answer_that_is_too_long_has_its_stop_reason(client):
    message = client.messages.create(**ask(TEXT) | {"max_tokens": 4})
    assert message.stop_reason == "max_tokens"
    assert TEXT.startswith(message.content[0].text)


def test_tokens_of_a_prompt_are_counted(client):
    body = ask(TEXT)
    message = client.messages.create(**body)
    del body["max_tokens"]
    usage = message.usage
    counted = client.messages.count_tokens(**body).input_tokens
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_a_text_stops_before_a_stop_sequence(client):
    message = client.messages.create(**ask("one STOP two"), stop_sequences=["STOP"])
    assert message.content[0].text == "one "
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "STOP")


def test_a_refusal_arrives_as_the_error_of_its_status(client):
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(**ask(TEXT) | {"model": "other"})
    assert missing.value.type == "not_found_error"
    used = {"type": "tool_result", "tool_use_id": "none", "content": "21"}
    body = ask(TEXT) | {"messages": [{"role": "user", "content": [used]}]}
    with pytest.raises(anthropic.BadRequestError, match="tool_use_id"):
        client.messages.create(**body)


def test_a_thread_sends_the_whole_conversation_each_time(client):
    body = ask(CALL, "one", "two")
    thread = client.beta.messages.thread(**body | {"tools": [TOOL]})
    first = thread.send()
    result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "21"}
    assert thread.send({"role": "user", "content": [result]}).content[0].text == "one"
    assert thread.send({"role": "user", "content": "And?"}).content[0].text == "two"


def test_an_unknown_conversation_is_not_continued(client):
    body = ask(TEXT) | {"thread": {"type": "continue", "previous_message_id": "msg_none"}}
    with pytest.raises(anthropic.NotFoundError, match="no conversation is kept") as missing:
        client.beta.messages.create(**body)
    assert missing.value.error_code == "thread_not_found"
