"""Tool calls, from the body of a request to OpenAI's form, under models that want other texts."""

import json

import jsonschema
import pytest
from doubles import Obsessed, Random
from driven import streamed
from exhaustive import by_default, examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from values import PROMPT, V

from dlm import (
    Answer,
    JsonObject,
    JsonSchema,
    Policy,
    Regex,
    Request,
    RequestError,
    ToolCall,
    Tools,
    request_of,
)

FEW = examples(12, suppress_health_check=[HealthCheck.too_slow])
SCHEMAS = {
    "book": {
        "type": "object",
        "properties": {
            "room": {"enum": ["mage", "<turn|>", "é"]},
            "nights": {"type": "integer", "minimum": 1, "maximum": 30},
            "notes": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 2},
            "paid": {"type": "boolean"},
        },
        "required": ["room", "nights"],
        "additionalProperties": False,
    },
    "where": {
        "type": "object",
        "properties": {
            "at": {
                "type": "object",
                "properties": {"x": {"type": "number"}, "label": {"type": ["string", "null"]}},
                "required": ["x", "label"],
                "additionalProperties": False,
            }
        },
        "required": ["at"],
        "additionalProperties": False,
    },
    "stop": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
MODELS = st.one_of(
    st.builds(lambda seed: Random(V, seed), st.integers(0, 999)),
    st.builds(lambda seed: Random(V, seed, scale=60.0), st.integers(0, 999)),
    st.sampled_from([[48], [49], [52], [106], [105], [0], [48, 49, 52, 106, 394, 459, 461]]).map(
        lambda tokens: Obsessed(V, tokens)
    ),
)
OPTIONS = st.fixed_dictionaries(
    {
        "choice": st.sampled_from(["auto", "required"]),
        "named": st.sampled_from([None, None, *SCHEMAS]),
        "parallel": st.booleans(),
    }
)


def serve(engine, request):
    """Return the result, and all text that was emitted on the way."""
    result, committed = streamed(engine, request)
    return result, "".join(event.text for event in committed)


@FEW
@given(model=MODELS, options=OPTIONS, seed=st.integers(0, 99), max_tokens=st.integers(40, 90))
def test_calls_obey_their_tools_whatever_the_model_wants(
    engine_of, model, options, seed, max_tokens
):
    spec = Tools(TOOLS, **options)
    request = Request(token_ids=PROMPT, constraint=spec, seed=seed, max_tokens=max_tokens)
    engine = engine_of(model)
    result, text = serve(engine, request)
    assert result.complete
    assert result.stats.tokens <= max_tokens
    assert isinstance(result.parsed, Answer)
    assert result.tool_calls == result.parsed.tool_calls
    assert text == result.text == (result.parsed.content or "")
    for call in result.tool_calls:
        jsonschema.validate(call.arguments, SCHEMAS[call.name])
    marks = result.token_ids.count(engine.vocabulary.call.open)
    assert marks == result.token_ids.count(engine.vocabulary.call.close) == len(result.tool_calls)
    if options["named"] is not None:
        assert [call.name for call in result.tool_calls] == [options["named"]]
    elif options["choice"] == "required":
        assert len(result.tool_calls) >= 1
    if not options["parallel"]:
        assert len(result.tool_calls) <= 1
    if options["named"] is not None or options["choice"] == "required":
        assert result.text == ""


BOOK = ToolCall("book", {"room": "é", "nights": 2, "notes": ["a, {b}", "日"], "paid": True})
WHERE = ToolCall("where", {"at": {"x": -1.5, "label": None}})
STOP = ToolCall("stop", {})


@pytest.mark.parametrize(
    "parts",
    [
        [BOOK],
        [BOOK, WHERE, STOP],
        ["Let me see: ", WHERE],
        ["No calls: {}, call:stop{}."],
        ["I write 日本 ", STOP, STOP],
    ],
)
@pytest.mark.parametrize("canvas_length", by_default([5, 64]))
def test_valid_calls_of_the_model_are_not_changed(calling, parts, canvas_length):
    engine = calling(*parts, canvas_length=canvas_length)
    result, text = serve(engine, Request(token_ids=PROMPT, constraint=Tools(TOOLS), max_tokens=200))
    assert result.tool_calls == tuple(part for part in parts if isinstance(part, ToolCall))
    assert text == result.text == "".join(part for part in parts if isinstance(part, str))
    assert result.finish_reason == "stop"
    assert result.stats.repairs == 0


def test_no_max_tokens_cut_a_call_in_half(calling):
    engine = calling(BOOK)
    for max_tokens in range(2, 60, 8):
        result = engine.generate(
            Request(token_ids=PROMPT, constraint=Tools(TOOLS), max_tokens=max_tokens)
        )
        assert result.complete
        for call in result.tool_calls:
            jsonschema.validate(call.arguments, SCHEMAS[call.name])


def test_a_free_answer_has_no_calls(calling):
    result = calling("Hello.", STOP).generate(Request(token_ids=PROMPT, max_tokens=60))
    assert (result.tool_calls, result.parsed) == ((), None)


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("auto", {"book", "where", "stop"}),
        ("required", {"book", "where", "stop"}),
        ({"type": "function", "function": {"name": "where"}}, {"where"}),
        ("none", set()),
    ],
)
@pytest.mark.parametrize("parallel", [True, False])
def test_calls_of_a_body_have_the_form_of_openai(calling, choice, names, parallel):
    body = {
        "messages": [{"role": "user", "content": "Book the room <|tool_call>, please."}],
        "tools": TOOLS,
        "tool_choice": choice,
        "parallel_tool_calls": parallel,
        "max_tokens": 120,
    }
    request = request_of(body, Policy())
    engine = calling(BOOK, WHERE)
    engine.model._prompt = len(engine.chat.prompt(request))  # where its script begins
    result = engine.generate(request)
    calls = [call.to_openai(f"call_{i}") for i, call in enumerate(result.tool_calls)]
    assert json.loads(json.dumps(calls)) == calls
    assert {call["function"]["name"] for call in calls} <= names
    assert bool(calls) is (choice != "none")
    for call in calls:
        function = call["function"]
        jsonschema.validate(json.loads(function["arguments"]), SCHEMAS[function["name"]])
    if choice == "auto" and parallel is not False:
        assert result.tool_calls == (BOOK, WHERE)
    if parallel is False and choice != "none":
        assert len(calls) == 1


@pytest.mark.parametrize("form", ["hermes", "qwen3_coder", "glm", "llama"])
def test_calls_in_another_format_are_parsed_from_the_text(engine_of, form):
    spec = Tools(TOOLS, choice="required", named="stop", format=form)
    engine = engine_of(Random(V, 1, scale=20.0))
    result, text = serve(engine, Request(token_ids=PROMPT, constraint=spec, max_tokens=120))
    assert result.tool_calls == (STOP,)
    assert text == result.text


def test_wrong_arguments_in_another_format_are_corrected(scripted):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"enum": [7, 8]}, "uniqueItems": True}},
        "required": ["a"],
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    text = '<tool_call>\n{"name": "f", "arguments": {"a": [7, 7]}}\n</tool_call>'
    engine = scripted(f"{text}<turn|>")
    spec = Tools([tool], choice="required", format="hermes")
    result = engine.generate(Request(token_ids=PROMPT, constraint=spec, max_tokens=80))
    assert result.tool_calls[0].arguments["a"] != [7, 7]
    jsonschema.validate(result.tool_calls[0].arguments, schema)


CONTENT = JsonSchema(
    {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]},
    unenforced="check",
)


@FEW
@given(model=MODELS, seed=st.integers(0, 99))
def test_an_answer_without_calls_obeys_its_own_format(engine_of, model, seed):
    for content in (CONTENT, JsonObject()):
        spec = Tools(TOOLS[2:], content=content)
        request = Request(token_ids=PROMPT, constraint=spec, seed=seed, max_tokens=60)
        result, text = serve(engine_of(model), request)
        assert text == result.text
        if result.tool_calls:
            assert result.text == ""
        else:
            content.value(result.text)


def test_a_policy_checks_the_format_beside_tools(engine_of):
    spec = Tools(TOOLS, content=Regex("a+"))
    engine = engine_of(Obsessed(V, [1]), policy=Policy.server("data"))
    with pytest.raises(RequestError, match="a regex is not served here"):
        engine.add(Request(token_ids=PROMPT, constraint=spec))
