"""Where else free text ends: at texts and tokens that its caller names."""

import pytest
from doubles import Obsessed, Scripted
from native_calls import answer_tokens
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

SAID = "One desk. Two lamps. Three tents.\nOne more chair."


@pytest.fixture
def says(engine_of, tokens_of):
    def says(text, canvas_length=16):
        script = tokens_of(text + "<turn|>")
        return engine_of(Scripted(V, len(PROMPT), script, canvas_length=canvas_length))

    return says


def serve(engine, request):
    """The result, and what was told on the way: after each event, all of the text."""
    engine.add(request)
    told, result = [""], None
    while engine.busy:
        for event in engine.step():
            if isinstance(event, Committed):
                told.append(told[-1] + event.text)
            elif isinstance(event, Finished):
                result = event.result
    assert result is not None
    return result, told


@pytest.mark.parametrize("canvas_length", [1, 16])
@pytest.mark.parametrize(
    ("stop", "left"),
    [
        (["lamps"], "One desk. Two "),
        (["\n"], "One desk. Two lamps. Three tents."),
        (["tents", "lamps. Three", "Two lamp"], "One desk. "),
        (["s. Three tents.\nOne m"], "One desk. Two lamp"),
        (["O"], ""),
        (["nowhere", "chair. "], SAID),
        ([" chair."], SAID.removesuffix(" chair.")),
    ],
)
def test_an_answer_ends_in_front_of_the_first_stop_wherever_canvases_end(
    says, canvas_length, stop, left
):
    engine = says(SAID, canvas_length)
    result, told = serve(engine, Request(token_ids=PROMPT, stop=stop, max_tokens=80))
    assert (result.text, result.finish_reason) == (left, "stop")
    assert told[-1] == left
    assert all(left.startswith(text) for text in told)  # nothing that was told is taken back
    said = engine.vocabulary.text(result.token_ids)
    assert SAID.startswith(said)
    assert (said != left) == (left != SAID)  # the stop itself was committed, and is paid for
    assert result.stats.tokens == len(result.token_ids) + (left == SAID)


def test_a_stop_that_only_begins_is_told_once_the_answer_is_over(says):
    result, told = serve(says("a lamp. b", 1), Request(token_ids=PROMPT, stop=["bc"]))
    assert told[-1] == result.text == "a lamp. b"
    assert "a lamp. b" not in told[:-2]


def test_reasoning_is_not_looked_into(says):
    said = "<|channel>thought\nTwo lamps?<channel|>One desk. Two lamps."
    result, _ = serve(says(said), Request(token_ids=PROMPT, stop=["lamps"], thinking=True))
    assert (result.reasoning, result.text) == ("Two lamps?", "One desk. Two ")


@pytest.mark.parametrize("canvas_length", [1, 16])
def test_an_answer_ends_at_a_token_that_its_caller_names(says, tokens_of, canvas_length):
    comma = tokens_of("desk, lamp")[len(tokens_of("desk"))]
    engine = says("desk, lamp", canvas_length)
    request = Request(token_ids=PROMPT, stop_token_ids=[comma], max_tokens=40)
    result, told = serve(engine, request)
    assert (result.text, told[-1], result.finish_reason) == ("desk", "desk", "stop")
    assert comma not in result.token_ids


def test_the_last_token_that_is_allowed_may_complete_a_stop(says, tokens_of):
    room = len(tokens_of("One desk."))
    result, told = serve(says(SAID), Request(token_ids=PROMPT, stop=["."], max_tokens=room))
    assert (result.text, told[-1], result.finish_reason) == ("One desk", "One desk", "stop")


F = {"type": "string", "maxLength": 20}
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"a": F}, "required": ["a"]}}
TOOLS = [{"type": "function", "function": TOOL}]
SET = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
CHECKED = [
    *TOOLS,
    {"type": "function", "function": {"name": "g", "parameters": {"properties": {"s": SET}}}},
]
CALL = ToolCall("f", {"a": "Two lamps."})


@pytest.fixture
def calls(engine_of):
    """An engine whose model says texts and calls."""

    def calls(*parts, canvas_length=16):
        vocabulary = engine_of(Obsessed(V, [1])).vocabulary
        script = [*answer_tokens(vocabulary, *parts), 106]
        return engine_of(Scripted(V, len(PROMPT), script, canvas_length=canvas_length))

    return calls


@pytest.mark.parametrize("canvas_length", [3, 64])
@pytest.mark.parametrize("tools", [TOOLS, CHECKED])
def test_free_text_before_a_call_ends_at_a_stop_and_a_call_does_not(calls, canvas_length, tools):
    said = calls("I look. Observation: two", CALL, canvas_length=canvas_length)
    request = Request(
        token_ids=PROMPT, constraint=Tools(tools), stop=["Observation:"], max_tokens=60
    )
    result, told = serve(said, request)
    assert (result.text, told[-1], result.finish_reason) == ("I look. ", "I look. ", "stop")
    assert result.parsed == Answer("I look. ", ())
    assert all("I look. ".startswith(text) for text in told)
    kept = calls("I look: ", CALL, canvas_length=canvas_length)
    stops = Request(token_ids=PROMPT, constraint=Tools(tools), stop=["lamps", "{"], max_tokens=60)
    result, told = serve(kept, stops)
    assert (result.text, result.tool_calls) == ("I look: ", (CALL,))
    assert told[-1] == "I look: "


@pytest.mark.parametrize("tools", [TOOLS, CHECKED])
def test_free_text_before_a_call_ends_at_a_token_that_its_caller_names(calls, tokens_of, tools):
    comma = tokens_of("desk, lamp")[len(tokens_of("desk"))]
    spec = Tools(tools)
    for parts, text, found in (
        (["desk, lamp", CALL], "desk", ()),
        (["desk", ToolCall("f", {"a": "x, y"})], "desk", (ToolCall("f", {"a": "x, y"}),)),
    ):
        request = Request(token_ids=PROMPT, constraint=spec, stop_token_ids=[comma], max_tokens=60)
        result, told = serve(calls(*parts), request)
        assert (result.text, told[-1], result.tool_calls) == (text, text, found)
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
    result, told = serve(engine, request)
    assert result.finish_reason == "stop"
    assert told[-1] == result.text
    assert result.parsed == spec.value(result.text)
    assert text in (None, result.text)


def test_text_in_a_format_beside_tools_ends_at_no_stop(engine_of, tokens_of):
    spec = Tools(TOOLS, content=Choice(["One desk. Two lamps."]))
    engine = engine_of(Scripted(V, len(PROMPT), tokens_of("One desk. Two lamps.<turn|>")))
    result, _ = serve(engine, Request(token_ids=PROMPT, constraint=spec, stop=["Two"]))
    assert result.text == "One desk. Two lamps."


def test_text_is_told_before_a_call_that_may_yet_be_refused(calls):
    """The check of its arguments takes back no text before it."""
    twice = ToolCall("g", {"s": ["é", "é"]})
    engine = calls("So: ", twice, canvas_length=8)
    engine.add(Request(token_ids=PROMPT, constraint=Tools(CHECKED), max_tokens=80))
    told, result, early = "", None, False
    while engine.busy:
        for event in engine.step():
            told += event.text if isinstance(event, Committed) else ""
            result = event.result if isinstance(event, Finished) else result
        early = early or (result is None and told == "So: ")
    assert early
    assert told == result.text == "So: "
    assert result.stats.rollbacks > 0
    assert len(set(result.tool_calls[0].arguments["s"])) == len(result.tool_calls[0].arguments["s"])


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"stop": "ab"}, "stop is 'ab': it takes a list of texts"),
        ({"stop": [1]}, r"stop\[0\] is 1: it takes texts"),
        ({"stop": ["a", ""]}, "stop holds an empty text"),
        ({"stop": ["a", "b" * 257]}, "stop holds a text of 257 characters: it takes 256"),
        ({"stop": ["a"] * 65}, "stop has 65 texts: it takes 64"),
        ({"stop_token_ids": ["a"]}, r"stop_token_ids\[0\] is 'a': it takes token ids"),
    ],
)
def test_stops_that_make_no_sense_are_refused(fields, problem):
    with pytest.raises(RequestError, match=problem):
        Request(token_ids=PROMPT, **fields)


def test_a_stop_token_that_the_model_does_not_have_is_refused(says):
    with pytest.raises(RequestError, match="stop_token_ids: 99999 is outside of 1536 tokens"):
        says(SAID).add(Request(token_ids=PROMPT, stop_token_ids=[99999]))


@pytest.mark.parametrize("text", ["a lamp. b", "日", "b"])
def test_what_was_held_back_is_told_at_the_end_although_no_token_is_new(says, tokens_of, text):
    prepared = says("").prepare(Request(token_ids=PROMPT, stop=["bc", "日本"]))
    stream = prepared.sequences[0].stream
    tokens = tokens_of(text)
    told = [stream.emit(tokens), stream.emit(tokens), stream.emit(tokens, ended=True)]
    assert [new for new, _, _ in told] == [tokens, [], []]
    assert "".join(said for _, said, _ in told) == text
    assert told[2][1]
