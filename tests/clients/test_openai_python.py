"""openai-python: chats and responses, their helpers for streams and for types."""

import json
import time
from collections.abc import Iterator

import openai
import pytest
from pydantic import BaseModel
from turn_scripts import call, script, thought

WEATHER = {
    "name": "weather",
    "description": "Return the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "strict": True,
}
CHAT_TOOL = {"type": "function", "function": WEATHER}
TOOL = {"type": "function", **WEATHER}
WANTED = {"city": "Paris", "days": 2}
CALL = [call("weather", **WANTED)]
TEXT = "It is 21 degrees in Paris."
CHATS = "/v1/chat/completions"
SUM = 'start: NUMBER ("+" NUMBER)+\nNUMBER: /[0-9]+/\n'


class Person(BaseModel):
    name: str
    age: int


OLGA = '{"name": "Olga", "age": 61}'


@pytest.fixture(scope="module")
def client(url) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


def ask(*steps):
    return [{"role": "user", "content": script(*steps)}]


def test_a_chat_calls_a_tool_and_answers_with_its_result(client):
    messages = ask(CALL, TEXT)
    create = client.chat.completions.create
    first = create(model="dlm", messages=messages, tools=[CHAT_TOOL]).choices[0]
    assert first.finish_reason == "tool_calls"
    (made,) = first.message.tool_calls
    assert made.function.name == "weather"
    assert json.loads(made.function.arguments) == WANTED
    messages += [first.message, {"role": "tool", "tool_call_id": made.id, "content": "21"}]
    last = create(model="dlm", messages=messages, tools=[CHAT_TOOL]).choices[0]
    assert (last.finish_reason, last.message.content) == ("stop", TEXT)


def test_a_stream_of_a_chat_calls_a_tool_and_answers_with_its_result(client):
    messages = ask([*CALL, call("weather", city="Rome", days=1)], TEXT)
    with client.chat.completions.stream(
        model="dlm", messages=messages, tools=[CHAT_TOOL]
    ) as stream:
        done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        message = stream.get_final_completion().choices[0].message
    assert [event.parsed_arguments for event in done] == [WANTED, {"city": "Rome", "days": 1}]
    messages.append(message.to_dict())
    for made in message.tool_calls:
        messages.append({"role": "tool", "tool_call_id": made.id, "content": "21"})
    with client.chat.completions.stream(
        model="dlm", messages=messages, tools=[CHAT_TOOL]
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
    assert text == TEXT


def test_a_chat_is_parsed_as_a_type(client):
    parse = client.chat.completions.parse
    answer = parse(model="dlm", messages=ask(OLGA), response_format=Person)
    assert answer.choices[0].message.parsed == Person(name="Olga", age=61)


def test_a_response_is_continued_by_its_id_with_the_result_of_a_tool(client):
    create = client.responses.create
    first = create(model="dlm", input=script(CALL, TEXT), tools=[TOOL])
    (made,) = first.output
    assert (made.type, made.name, json.loads(made.arguments)) == (
        "function_call",
        "weather",
        WANTED,
    )
    result = {"type": "function_call_output", "call_id": made.call_id, "output": "21"}
    last = create(model="dlm", previous_response_id=first.id, input=[result], tools=[TOOL])
    assert (last.status, last.output_text) == ("completed", TEXT)
    assert last.previous_response_id == first.id


def test_a_response_that_is_not_stored_is_continued_by_its_items(client):
    create = client.responses.create
    items = ask(CALL, TEXT)
    first = create(model="dlm", input=items, tools=[TOOL], store=False)
    items += first.output
    call_id = first.output[0].call_id
    items.append({"type": "function_call_output", "call_id": call_id, "output": "21"})
    last = create(model="dlm", input=items, tools=[TOOL], store=False)
    assert last.output_text == TEXT
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(last.id)


def test_a_stream_of_a_response_ends_with_the_response_that_its_events_build(client):
    arguments = ""
    with client.responses.stream(model="dlm", input=script(CALL, TEXT), tools=[TOOL]) as stream:
        for event in stream:
            if event.type == "response.output_item.added":
                assert event.item.arguments == ""
            if event.type == "response.function_call_arguments.delta":
                arguments += event.delta
                assert event.snapshot == arguments
        first = stream.get_final_response()
    assert json.loads(arguments) == first.output[0].parsed_arguments == WANTED
    result = {
        "type": "function_call_output",
        "call_id": first.output[0].call_id,
        "output": [{"type": "input_text", "text": "21"}],
    }
    with client.responses.stream(
        model="dlm", previous_response_id=first.id, input=[result], tools=[TOOL]
    ) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        last = stream.get_final_response()
    assert text == last.output_text == TEXT


def test_a_response_is_parsed_as_a_type(client):
    answer = client.responses.parse(model="dlm", input=script(OLGA), text_format=Person)
    assert answer.output_parsed == Person(name="Olga", age=61)


def test_a_stream_of_a_response_is_parsed_as_a_type(client):
    with client.responses.stream(model="dlm", input=script(OLGA), text_format=Person) as stream:
        assert stream.get_final_response().output_parsed == Person(name="Olga", age=61)


def test_a_tool_made_from_a_type_gets_that_type(client):
    tool = openai.pydantic_function_tool(Person, name="save")
    tools = [{"type": "function", **tool["function"]}]
    wanted = [call("save", name="Olga", age=61)]
    answer = client.responses.parse(model="dlm", input=script(wanted), tools=tools)
    assert answer.output[0].arguments == OLGA


def test_a_custom_tool_gets_a_text_of_its_grammar(client):
    grammar = {"type": "grammar", "syntax": "lark", "definition": SUM}
    tools = [{"type": "custom", "name": "add", "description": "Add numbers.", "format": grammar}]
    wanted = [call("add", input="12+30")]
    first = client.responses.create(model="dlm", input=script(wanted, "It is 42."), tools=tools)
    (made,) = first.output
    assert (made.type, made.name, made.input) == ("custom_tool_call", "add", "12+30")
    result = {"type": "custom_tool_call_output", "call_id": made.call_id, "output": "42"}
    last = client.responses.create(
        model="dlm", previous_response_id=first.id, input=[result], tools=tools
    )
    assert last.output_text == "It is 42."


def test_a_stream_of_a_custom_tool_sends_its_text(client):
    tools = [{"type": "custom", "name": "note", "description": "Write a note."}]
    wanted = [call("note", input='a "b"\nc')]
    with client.responses.stream(model="dlm", input=script(wanted), tools=tools) as stream:
        events = list(stream)
    (added,) = [e.item for e in events if e.type == "response.output_item.added"]
    assert added.input == ""
    deltas = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == stream.get_final_response().output[0].input == 'a "b"\nc'


def test_a_stored_response_is_read_and_deleted(client):
    made = client.responses.create(model="dlm", input=script(TEXT))
    assert client.responses.retrieve(made.id).output_text == TEXT
    (item,) = client.responses.input_items.list(made.id).data
    assert item.role == "user"
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_refusal_arrives_as_the_error_of_its_status(client):
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="other", input="Hello")
    with pytest.raises(openai.BadRequestError, match="previous_response_id") as refused:
        client.responses.create(model="dlm", input="Hello", previous_response_id="resp_none")
    assert refused.value.param == "previous_response_id"


@pytest.mark.parametrize("summary", ["auto", None])
def test_reasoning_is_an_item_that_can_be_sent_back(client, summary):
    fixed = {"model": "dlm", "tools": [TOOL], "reasoning": {"effort": "low", "summary": summary}}
    items = ask(thought("Paris it is.", CALL), TEXT)
    with client.responses.stream(input=items, **fixed) as stream:
        kinds = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
        deltas = [event.delta for event in stream if event.type in kinds]
        first = stream.get_final_response()
    assert [item.type for item in first.output] == ["reasoning", "function_call"]
    parts = first.output[0].summary if summary else first.output[0].content
    assert "".join(deltas) == parts[0].text == "Paris it is."
    assert first.usage.output_tokens_details.reasoning_tokens > 0
    items += [item.to_dict() for item in first.output]
    call_id = first.output[1].call_id
    items.append({"type": "function_call_output", "call_id": call_id, "output": "21"})
    assert client.responses.create(input=items, **fixed).output_text == TEXT


def test_an_answer_that_is_too_long_is_incomplete(client):
    short = client.responses.create(model="dlm", input=script(TEXT), max_output_tokens=4)
    assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert TEXT.startswith(short.output_text)
    with client.responses.stream(model="dlm", input=script(TEXT), max_output_tokens=4) as stream:
        assert [event.type for event in stream][-1] == "response.incomplete"


ENDED = ("completed", "failed", "cancelled", "expired")


def uploaded(client, texts):
    """Upload the lines of a batch, with a text for each of them, and return the file."""
    rows = [
        {
            "custom_id": id,
            "method": "POST",
            "url": CHATS,
            "body": {"model": "dlm", "messages": ask(text)},
        }
        for id, text in texts.items()
    ]
    content = "\n".join(map(json.dumps, rows)).encode()
    return client.files.create(file=("rows.jsonl", content), purpose="batch")


def ended(client, batch):
    """Return a batch once it has ended; fail if it has not after a minute of looks at it."""
    for _ in range(1200):
        if batch.status in ENDED:
            return batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    pytest.fail(f"the batch is still {batch.status}: {batch.request_counts}")


def test_a_batch_of_an_uploaded_file_is_answered(client):
    texts = {"weather": TEXT, "person": OLGA}
    file = uploaded(client, texts)
    assert client.files.retrieve(file.id).filename == "rows.jsonl"
    batch = client.batches.create(
        input_file_id=file.id, endpoint=CHATS, completion_window="24h", metadata={"job": "one"}
    )
    assert batch.metadata == {"job": "one"}
    batch = ended(client, batch)
    counts = batch.request_counts
    assert (batch.status, counts.total, counts.completed, counts.failed) == ("completed", 2, 2, 0)
    lines = client.files.content(batch.output_file_id).text.splitlines()
    answers = {answer["custom_id"]: answer["response"]["body"] for answer in map(json.loads, lines)}
    contents = {id: body["choices"][0]["message"]["content"] for id, body in answers.items()}
    assert contents == texts
    assert client.files.content(batch.output_file_id).read().splitlines() == [
        line.encode() for line in lines
    ]
    client.files.delete(file.id)
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_the_error_of_a_line_is_in_the_error_file(client):
    row = {"custom_id": "bad", "method": "POST", "url": CHATS, "body": {"model": "dlm"}}
    file = client.files.create(file=("rows.jsonl", json.dumps(row).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=CHATS, completion_window="24h")
    batch = ended(client, batch)
    assert (batch.status, batch.request_counts.failed) == ("completed", 1)
    assert batch.output_file_id is None
    (line,) = client.files.content(batch.error_file_id).text.splitlines()
    assert json.loads(line)["response"]["status_code"] == 400


def test_batches_are_listed_page_by_page_and_cancelled(client):
    """Each batch is cancelled as soon as it is made, with more rows than end between the two."""
    file = uploaded(client, {str(i): TEXT for i in range(1000)})
    ids = []
    for _ in range(3):
        batch = client.batches.create(
            input_file_id=file.id, endpoint=CHATS, completion_window="24h"
        )
        assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
        ids.insert(0, batch.id)
    listed = [batch.id for batch in client.batches.list(limit=2)]  # of all pages
    assert listed[:3] == ids
    assert [ended(client, client.batches.retrieve(id)).status for id in ids] == ["cancelled"] * 3
    with pytest.raises(openai.BadRequestError):
        client.batches.cancel(ids[0])
