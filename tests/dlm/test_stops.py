"""Stops of a caller: texts and tokens at which free text ends."""

from itertools import accumulate

import pytest
from doubles import Obsessed
from driven import events_of, streamed
from values import PROMPT, V

from dlm import (
    Answer,
    Choice,
    Committed,
    Finished,
    JsonSchema,
    Regex,
    Request,
    RequestError,
    ToolCall,
    Tools,
)

TEXT = "One desk. Two lamps. Three tents.\nOne more chair."


def serve(engine, request):
    """Return the result, and all of the emitted text after each event."""
    result, committed = streamed(engine, request)
    return result, [*accumulate((event.text for event in committed), initial="")]


@pytest.mark.parametrize("canvas_length", [1, 16])
@pytest.mark.parametrize(
    ("stop", "left"),
    [
        (["lamps"], "One desk. Two "),
        (["\n"], "One desk. Two lamps. Three tents."),
        (["tents", "lamps. Three", "Two lamp"], "One desk. "),
        (["s. Three tents.\nOne m"], "One desk. Two lamp"),
        (["O"], ""),
        (["nowhere", "chair. "], TEXT),
        ([" chair."], TEXT.removesuffix(" chair.")),
    ],
)
def test_an_answer_ends_before_its_first_stop_wherever_canvases_end(
    scripted, canvas_length, stop, left
):
    engine = scripted(f"{TEXT}<turn|>", canvas_length)
    result, texts = serve(engine, Request(token_ids=PROMPT, stop=stop, max_tokens=80))
    assert (result.text, result.finish_reason) == (left, "stop")
    assert texts[-1] == left
    assert all(left.startswith(text) for text in texts)  # emitted text stays
    text = engine.vocabulary.text(result.token_ids)
    assert TEXT.startswith(text)
    assert (text != left) == (left != TEXT)  # the stop was committed, and counts
    assert result.stats.tokens == len(result.token_ids) + (left == TEXT)


def test_the_beginning_of_a_stop_is_emitted_once_the_answer_ends(scripted):
    result, texts = serve(scripted("a lamp. b<turn|>", 1), Request(token_ids=PROMPT, stop=["bc"]))
    assert texts[-1] == result.text == "a lamp. b"
    assert "a lamp. b" not in texts[:-2]


def test_reasoning_has_no_stops(scripted):
    engine = scripted("<|channel>thought\nTwo lamps?<channel|>One desk. Two lamps.<turn|>")
    result, _ = serve(engine, Request(token_ids=PROMPT, stop=["lamps"], thinking=True))
    assert (result.reasoning, result.text) == ("Two lamps?", "One desk. Two ")


@pytest.mark.parametrize("canvas_length", [1, 16])
def test_an_answer_ends_at_a_token_that_its_caller_names(scripted, tokens_of, canvas_length):
    comma = tokens_of("desk, lamp")[len(tokens_of("desk"))]
    engine = scripted("desk, lamp<turn|>", canvas_length)
    request = Request(token_ids=PROMPT, stop_token_ids=[comma], max_tokens=40)
    result, texts = serve(engine, request)
    assert (result.text, texts[-1], result.finish_reason) == ("desk", "desk", "stop")
    assert comma not in result.token_ids


def test_the_last_token_of_max_tokens_may_complete_a_stop(scripted, tokens_of):
    request = Request(token_ids=PROMPT, stop=["."], max_tokens=len(tokens_of("One desk.")))
    result, texts = serve(scripted(f"{TEXT}<turn|>"), request)
    assert (result.text, texts[-1], result.finish_reason) == ("One desk", "One desk", "stop")


F = {"type": "string", "maxLength": 20}
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"a": F}, "required": ["a"]}}
TOOLS = [{"type": "function", "function": TOOL}]
SET = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
CHECKED = [
    *TOOLS,
    {"type": "function", "function": {"name": "g", "parameters": {"properties": {"s": SET}}}},
]
CALL = ToolCall("f", {"a": "Two lamps."})


@pytest.mark.parametrize("canvas_length", [3, 64])
@pytest.mark.parametrize("tools", [TOOLS, CHECKED])
def test_free_text_before_a_call_ends_at_a_stop_and_a_call_does_not(calling, canvas_length, tools):
    engine = calling("I look. Observation: two", CALL, canvas_length=canvas_length)
    request = Request(
        token_ids=PROMPT, constraint=Tools(tools), stop=["Observation:"], max_tokens=60
    )
    result, texts = serve(engine, request)
    assert (result.text, texts[-1], result.finish_reason) == ("I look. ", "I look. ", "stop")
    assert result.parsed == Answer("I look. ", ())
    assert all("I look. ".startswith(text) for text in texts)
    engine = calling("I look: ", CALL, canvas_length=canvas_length)
    stops = Request(token_ids=PROMPT, constraint=Tools(tools), stop=["lamps", "{"], max_tokens=60)
    result, texts = serve(engine, stops)
    assert (result.text, result.tool_calls) == ("I look: ", (CALL,))
    assert texts[-1] == "I look: "


@pytest.mark.parametrize("tools", [TOOLS, CHECKED])
def test_free_text_before_a_call_ends_at_a_token_that_its_caller_names(calling, tokens_of, tools):
    comma = tokens_of("desk, lamp")[len(tokens_of("desk"))]
    spec = Tools(tools)
    for parts, text, found in (
        (["desk, lamp", CALL], "desk", ()),
        (["desk", ToolCall("f", {"a": "x, y"})], "desk", (ToolCall("f", {"a": "x, y"}),)),
    ):
        request = Request(token_ids=PROMPT, constraint=spec, stop_token_ids=[comma], max_tokens=60)
        result, texts = serve(calling(*parts), request)
        assert (result.text, texts[-1], result.tool_calls) == (text, text, found)
        assert result.finish_reason == "stop"


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (JsonSchema({"properties": {"a": {"const": "x\nObservation:"}}, "required": ["a"]}), None),
        (Choice(["One desk. Two lamps."]), "One desk. Two lamps."),
        (Regex("a, b"), "a, b"),
    ],
)
def test_text_under_a_constraint_ends_at_no_stop(engine_of, tokens_of, spec, text):
    engine = engine_of(Obsessed(V, [383]))
    stops = {"stop": ["a", "Observation:", "lamps"], "stop_token_ids": tokens_of(", .")}
    request = Request(token_ids=PROMPT, constraint=spec, max_tokens=60, **stops)
    result, texts = serve(engine, request)
    assert result.complete
    assert texts[-1] == result.text
    assert result.parsed == spec.value(result.text)
    assert text in (None, result.text)


def test_text_in_a_format_beside_tools_ends_at_no_stop(scripted):
    spec = Tools(TOOLS, content=Choice(["One desk. Two lamps."]))
    engine = scripted("One desk. Two lamps.<turn|>")
    result, _ = serve(engine, Request(token_ids=PROMPT, constraint=spec, stop=["Two"]))
    assert result.text == "One desk. Two lamps."


def test_text_before_a_call_is_emitted_before_the_call_is_checked(calling):
    twice = ToolCall("g", {"s": ["é", "é"]})
    engine = calling("So: ", twice, canvas_length=8)
    engine.add(Request(token_ids=PROMPT, constraint=Tools(CHECKED), max_tokens=80))
    text = ""
    while text != "So: ":
        assert engine.busy
        events = engine.step()
        assert not any(isinstance(event, Finished) for event in events)
        text += "".join(event.text for event in events if isinstance(event, Committed))
    *events, last = events_of(engine)
    assert not any(isinstance(event, Committed) and event.text for event in events)
    assert last.result.text == "So: "
    assert last.result.stats.rollbacks > 0
    items = last.result.tool_calls[0].arguments["s"]
    assert len(set(items)) == len(items)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"stop": "ab"}, "stop must be a list of texts, got 'ab'"),
        ({"stop": [1]}, r"stop\[0\] must be a text, got 1"),
        ({"stop": ["a", ""]}, "stop must not have an empty text"),
        ({"stop": ["a", "b" * 257]}, "stop must have texts of at most 256 characters, got 257"),
        ({"stop": ["a"] * 65}, "stop must have at most 64 texts, got 65"),
        ({"stop_token_ids": ["a"]}, r"stop_token_ids\[0\] must be a token id, got 'a'"),
    ],
)
def test_invalid_stops_are_refused(fields, problem):
    with pytest.raises(RequestError, match=problem):
        Request(token_ids=PROMPT, **fields)


def test_a_stop_token_that_the_model_does_not_have_is_refused(scripted):
    with pytest.raises(RequestError, match="stop_token_ids: a token must be 0 to 1535, got 99999"):
        scripted("").add(Request(token_ids=PROMPT, stop_token_ids=[99999]))


@pytest.mark.parametrize("text", ["a lamp. b", "日", "b"])
def test_held_back_text_is_emitted_at_the_end_even_without_a_new_token(scripted, tokens_of, text):
    prepared = scripted("").prepare(Request(token_ids=PROMPT, stop=["bc", "日本"]))
    stream = prepared.sequences[0].stream
    tokens = tokens_of(text)
    emitted = [stream.emit(tokens), stream.emit(tokens), stream.emit(tokens, ended=True)]
    assert [part.tokens for part in emitted] == [tokens, [], []]
    assert [part.answer for part in emitted] == [tokens, [], []]
    assert "".join(part.text for part in emitted) == text
    assert emitted[2].text
