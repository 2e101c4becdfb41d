"""Calls in tags, as Hermes' and Qwen's models write them: streamed, with reasoning and text."""

import pytest
from doubles import Scripted
from driven import streamed
from values import PROMPT, V

from dlm import JsonSchema, Request, ToolCall, Tools
from dlm.openai.answers import ChatAnswers
from dlm.openai.items import ItemReader
from dlm.openai.requests import Generation

SEATS = {
    "type": "function",
    "function": {
        "name": "book",
        "parameters": {
            "type": "object",
            "properties": {"seats": {"type": "integer"}},
            "required": ["seats"],
        },
    },
}


@pytest.mark.parametrize("parallel", [True, False])
def test_a_call_in_tags_after_reasoning_and_text_is_streamed_apart(engine_of, tokens_of, parallel):
    call = '<tool_call>\n{"name": "book", "arguments": {"seats": 2}}\n</tool_call>'
    text = f"<think>\nTwo seats.</think>\n\nI book <b>two.\n{call}\n{call}<turn|>"
    model = Scripted(V, len(PROMPT), tokens_of(text), canvas_length=8)
    engine = engine_of(model, thought=("<think>", "</think>"))
    spec = Tools([SEATS], format="hermes", parallel=parallel)
    request = Request(token_ids=PROMPT, constraint=spec, thinking=True, max_tokens=160)
    result, events = streamed(engine, request)
    calls = (ToolCall("book", {"seats": 2}),) * (1 + parallel)
    assert result.tool_calls == calls
    assert (result.reasoning, result.text) == ("Two seats.", "\n\nI book <b>two.")
    assert result.parsed.content == result.text
    assert "".join(event.text for event in events) == result.text
    reader, items = ItemReader(request, engine.vocabulary), []
    for event in events:
        reader.feed(event)
    items = [(item.kind, item.name, item.text) for item in reader.items]
    assert items == [
        ("reasoning", "", "Two seats."),
        ("text", "", "\n\nI book <b>two."),
        *[("call", "book", '{"seats": 2}')] * len(calls),
    ]
    written = next(i for i, event in enumerate(events) if "two." in event.text)
    assert written < len(events) - 1  # before the calls have ended


BOOKING = '<tool_call>\n{"name": "book", "arguments": {"seats": 2}}\n</tool_call>'
XML_BOOKING = """<tool_call>
<function=book>
<parameter=seats>
2
</parameter>
</function>
</tool_call>"""
TAGS_IN_REASONING = {
    "a whole call": (Tools([SEATS], format="hermes"), f"Maybe {BOOKING} now.", "Hi."),
    "a call that never ends": (
        Tools([SEATS], format="hermes"),
        "It begins with <tool_call>. " + 45 * "Let me think. ",
        "Hi.",
    ),
    "an opening before a call": (
        Tools([SEATS], format="qwen3_coder"),
        "I write <tool_call>\n<function=book> and its parameters.",
        XML_BOOKING,
    ),
    "text before calls beside content": (
        Tools([SEATS], format="hermes", content=JsonSchema({"type": "boolean"})),
        "Call it.",
        BOOKING,
    ),
    "text before calls in XML beside content": (
        Tools([SEATS], format="qwen3_coder", content=JsonSchema({"type": "boolean"})),
        "Call it.",
        XML_BOOKING,
    ),
}


MARKERS = {
    "control": (None, "<|channel>thought\n", "<channel|>"),
    "text": (("<think>", "</think>"), "<think>", "</think>"),  # several tokens each
}


@pytest.mark.parametrize("kind", MARKERS)
@pytest.mark.parametrize("case", TAGS_IN_REASONING)
def test_tags_in_reasoning_are_text_whole_and_streamed(engine_of, tokens_of, case, kind):
    spec, thought, answer = TAGS_IN_REASONING[case]
    markers, opens, closes = MARKERS[kind]
    script = [*tokens_of(opens), *tokens_of(f"{thought}{closes}{answer}<turn|>")]
    engine = engine_of(Scripted(V, len(PROMPT), script, canvas_length=32), thought=markers)
    request = Request(token_ids=PROMPT, constraint=spec, thinking=True, max_tokens=900)
    result, events = streamed(engine, request)
    calls = () if answer == "Hi." else (ToolCall("book", {"seats": 2}),)
    assert (result.tool_calls, result.reasoning) == (calls, thought.strip())
    reader = ItemReader(request, engine.vocabulary)
    for event in events:
        reader.feed(event)
    shown = ("call", "book", '{"seats": 2}') if calls else ("text", "", "Hi.")
    for items in (reader.items, ItemReader(request, engine.vocabulary).read(result)):
        shapes = [(item.kind, item.name, item.text) for item in items]
        assert shapes == [("reasoning", "", thought.strip()), shown]


def test_a_call_whose_value_may_yet_become_json_is_streamed_at_the_answers_end(
    engine_of, tokens_of
):
    schema = {"type": "object", "properties": {"seats": {"type": ["string", "array"]}}}
    tool = {"type": "function", "function": {"name": "book", "parameters": schema}}
    booking = XML_BOOKING.replace("\n2\n", '["').partition("<parameter")
    text = "".join((*booking[:2], booking[2].replace("\n", ""), "<turn|>"))
    engine = engine_of(Scripted(V, len(PROMPT), tokens_of(text), canvas_length=32))
    request = Request(token_ids=PROMPT, constraint=Tools([tool], format="qwen3_coder"))
    result, events = streamed(engine, request)
    assert result.tool_calls == (ToolCall("book", {"seats": '["'}),)
    reader, whole = (ItemReader(request, engine.vocabulary) for _ in range(2))
    for event in events:
        reader.feed(event)
    assert not reader.items
    reader.close()
    for items in (reader.items, whole.read(result)):
        assert [(item.name, item.text) for item in items] == [("book", '{"seats": "[\\""}')]
    generation = Generation(requests=(request,))
    answers = ChatAnswers(generation, "m", engine.vocabulary)
    chunks = [chunk for event in events for chunk in answers.progress(0, event)]
    chunks += answers.end(0, result)
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
    assert "".join(call.get("arguments", "") for call in calls) == '{"seats": "[\\""}'
