"""Answers of text or tool calls: options, accepted answers, and parsed answers."""

import json
import pickle
import random
from copy import copy
from functools import partial
from pathlib import Path

import pytest
from native_calls import answer_tokens
from readers import misread
from spoken import MARKERS, accepts, objects, recogniser, spoken
from training.lessons import tool_call
from transformers import AutoTokenizer

import dlm.models
from dlm.grammar import (
    Answer,
    InvalidGrammarError,
    InvalidValueError,
    JsonObject,
    JsonSchema,
    ToolCall,
    Tools,
)
from dlm.grammar.canvas.workers import build
from dlm.grammar.limits import SharedCache
from dlm.grammar.specs import call_arguments
from dlm.grammar.vocabulary import MistralListMarkers, MistralMarkers

WRITE = call_arguments.write


def function(name, **properties):
    parameters = objects(list(properties), **properties)
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [function("get-weather", city={"type": "string"}), function("set_alarm.v2")]
WEATHER = ToolCall("get-weather", {"city": "Zürich"})
ALARM = ToolCall("set_alarm.v2", {})


@pytest.fixture
def write(vocabulary):
    """Return the tokens of an answer of texts and calls."""
    return partial(answer_tokens, vocabulary)


@pytest.mark.parametrize(
    ("options", "taken", "refused"),
    [
        ({}, [["Hello!"], ["So: ", WEATHER, ALARM], [ALARM, ALARM], []], [[WEATHER, "and so on"]]),
        ({"parallel": False}, [["Hello!"], ["So: ", WEATHER]], [[WEATHER, ALARM]]),
        ({"choice": "required"}, [[WEATHER], [WEATHER, ALARM]], [["Hello!"], ["So: ", ALARM], []]),
        ({"choice": "required", "parallel": False}, [[ALARM]], [[ALARM, ALARM], []]),
        ({"named": "get-weather"}, [[WEATHER]], [[ALARM], [WEATHER, WEATHER], ["Hello!"], []]),
    ],
)
def test_an_answer_is_text_or_calls_as_the_options_require(
    write, vocabulary, options, taken, refused
):
    spec = Tools(TOOLS, **options)
    for parts in taken:
        assert accepts(spec, spoken(*parts))
        text = "".join(part for part in parts if isinstance(part, str))
        calls = tuple(part for part in parts if not isinstance(part, str))
        assert spec.read([*write(*parts), vocabulary.stops[1]], vocabulary) == Answer(
            text or None, calls
        )
    assert misread(recogniser(spec).accepts, [], [spoken(*parts) for parts in refused]) == []


@pytest.mark.parametrize(
    ("options", "parts", "problem"),
    [
        ({"choice": "required"}, ["Hello!"], "a tool call is required, and there is none"),
        ({"named": "set_alarm.v2"}, [], "a tool call is required, and there is none"),
        ({"named": "set_alarm.v2"}, [WEATHER], "'get-weather', which is not offered"),
        ({"named": "set_alarm.v2"}, [ALARM, ALARM], "more than one tool call"),
        ({"parallel": False}, [ALARM, WEATHER], "more than one tool call"),
        ({}, [ToolCall("other", {})], "'other', which is not offered"),
        ({}, [ToolCall("get-weather", {})], "call of get-weather: .* lacks 'city', a required"),
        ({}, [ToolCall("get-weather", {"city": 3})], r"at /city: 3 is not of type 'string'"),
    ],
)
def test_an_unconstrained_answer_is_checked_against_the_same_options(
    write, vocabulary, options, parts, problem
):
    with pytest.raises(InvalidValueError, match=problem):
        Tools(TOOLS, **options).read(write(*parts), vocabulary)


def test_text_that_reads_like_a_call_is_text(write, vocabulary):
    text = "<|tool_call>call:set_alarm.v2{}<tool_call|>"
    assert accepts(Tools(TOOLS), text)
    assert Tools(TOOLS).read(write(text), vocabulary) == Answer(text, ())
    assert Tools(TOOLS).value(text) == Answer(text, ())
    assert not accepts(Tools(TOOLS, choice="required"), text)


def test_equal_names_in_the_schemas_of_two_tools_are_independent():
    def tool(name, kind):
        schema = {"$defs": {"d": {"type": kind}}, "properties": {"a": {"$ref": "#/$defs/d"}}}
        return {"type": "function", "function": {"name": name, "parameters": schema}}

    spec = Tools([tool("f0", "string"), tool("f1", "integer")])
    assert accepts(spec, spoken(ToolCall("f0", {"a": "x"}), ToolCall("f1", {"a": 1})))
    assert not accepts(spec, spoken(ToolCall("f0", {"a": 1})))
    assert not accepts(spec, spoken(ToolCall("f1", {"a": "x"})))


def test_calls_of_the_training_data_are_accepted_and_parsed(vocabulary):
    tokenizer = AutoTokenizer.from_pretrained(Path(dlm.models.__file__).parent / "tiny")
    for seed in range(6):
        sample = tool_call(random.Random(seed), "train")
        tokens = tokenizer.encode(sample.answer, add_special_tokens=False)
        spec = Tools(sample.tools)
        (call,) = spec.read(tokens, vocabulary).tool_calls
        assert (call.name, call.arguments) == sample.value
        assert accepts(spec, spoken(call))


def test_the_key_depends_on_everything_that_changes_the_grammar():
    described = [{**tool, "function": {**tool["function"], "description": "d"}} for tool in TOOLS]
    assert Tools(TOOLS).key == Tools(described).key
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    others = [
        Tools(strict),  # refused where others are checked
        Tools(TOOLS[:1]),
        Tools(TOOLS, choice="required"),
        Tools(TOOLS, named="get-weather"),
        Tools(TOOLS, parallel=False),
        Tools(TOOLS, format="hermes"),
    ]
    assert len({spec.key for spec in (Tools(TOOLS), *others)}) == 7


@pytest.mark.parametrize(
    ("form", "own"),
    [
        ("gemma4", MARKERS),
        ("mistral", MistralMarkers(1, 2)),
        ("mistral_list", MistralListMarkers(1)),
    ],
)
def test_a_form_that_begins_with_a_control_token_needs_its_own(form, own):
    spec = Tools(TOOLS, format=form)
    assert spec.rules(own)
    for markers in {None, MARKERS, MistralMarkers(1, 2), MistralListMarkers(1)} - {own}:
        with pytest.raises(InvalidGrammarError, match=f"control tokens of the form {form}"):
            spec.rules(markers)
    assert Tools(TOOLS, format="llama").rules(None)


def test_a_spec_without_a_form_takes_that_of_the_model():
    spec = Tools(TOOLS)
    assert spec.in_form("gemma4") is spec
    assert spec.in_form("hermes") == Tools(TOOLS, format="hermes")
    assert Tools(TOOLS, format="llama").in_form("hermes") == Tools(TOOLS, format="llama")
    with pytest.raises(InvalidGrammarError, match=r"no form of calls that is known .*hermes"):
        spec.in_form(None)
    assert CONTENT.in_form(None) is CONTENT


@pytest.mark.parametrize(
    ("tools", "options", "where", "reason"),
    [
        ([], {}, "/tools", "there are no tools"),
        ("f", {}, "/tools", "tools must be a list, got 'f'"),
        ([object()], {}, "/tools", "not JSON data"),
        ([3], {}, "/tools/0", "a tool must be"),
        ([{"function": {"name": "f"}}], {}, "/tools/0", "a tool must be"),
        ([{"type": "function", "name": "f"}], {}, "/tools/0", "a tool must be"),
        ([{"type": "function", "function": {}}], {}, "/tools/0/function/name", "got None"),
        ([function("a b")], {}, "/tools/0/function/name", "got 'a b'"),
        ([function("a" * 65)], {}, "/tools/0/function/name", "1 to 64"),
        ([*TOOLS, TOOLS[0]], {}, "/tools/2/function/name", "is there twice"),
        ([function("f", a={"type": "text"})], {}, "/tools/0/function/parameters/properties/a/type",
         "'text' is no type"),
        ([{"type": "function", "function": {"name": "f", "parameters": []}}], {},
         "/tools/0/function/parameters", "a schema must be an object"),
        ([{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}], {},
         "/tools/0/function/parameters", "must be an object"),
        (TOOLS, {"choice": "none"}, "/choice", "choice must be one of auto, required, got 'none'"),
        (TOOLS, {"named": "other"}, "/named", "no tool 'other'"),
        (TOOLS, {"format": "gpt"}, "/format", "format must be one of gemma4, hermes"),
        *((TOOLS, {name: []}, f"/{name}", f"/{name}") for name in ("format", "choice", "named")),
    ],
)  # fmt: skip
def test_an_invalid_spec_is_refused_with_its_place_and_the_reason(tools, options, where, reason):
    with pytest.raises(InvalidGrammarError, match=reason) as raised:
        Tools(tools, **options)
    assert raised.value.where == where


CONTENT = JsonSchema({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]})


def test_an_answer_without_calls_fits_the_schema_of_its_content():
    reader = recogniser(Tools(TOOLS, content=CONTENT))
    refused = ['{"a": 3}', "Hello.", "", spoken('{"a": 1}', ALARM)]
    assert misread(reader.accepts, ['{"a": 1}', spoken(ALARM, ALARM)], refused) == []


@pytest.mark.parametrize("options", [{"choice": "required"}, {"named": "set_alarm.v2"}])
def test_a_schema_of_content_has_no_effect_where_a_call_is_required(options):
    spec = Tools(TOOLS, content=CONTENT, **options)
    assert spec.key == Tools(TOOLS, **options).key
    assert not accepts(spec, '{"a": 1}')
    assert Tools(TOOLS, content=CONTENT).key != Tools(TOOLS).key


def test_content_that_may_repeat_a_key_is_checked_at_the_end():
    assert not Tools(TOOLS, content=CONTENT).checked
    assert Tools(TOOLS, content=JsonObject()).checked


def test_content_beside_calls_that_begin_as_json_does_is_refused():
    with pytest.raises(InvalidGrammarError, match="content must be None with llama, got a JSON"):
        Tools(TOOLS, content=CONTENT, format="llama")


@pytest.mark.parametrize("name", ["host:1,", "a:{"])
def test_a_name_that_only_one_form_cannot_have_is_refused_in_that_form_alone(name):
    spec = Tools([function("f", **{name: {"type": "integer"}})], choice="required")
    call = json.dumps({"name": "f", "arguments": {name: 3}})
    assert accepts(spec.in_form("hermes"), f"<tool_call>{call}</tool_call>")
    for refused in (
        lambda: spec.in_form("gemma4"),
        lambda: spec.rules(MARKERS),
        lambda: Tools(spec.tools, format="gemma4"),
    ):
        with pytest.raises(InvalidGrammarError, match="Gemma's calls"):
            refused()
    with pytest.raises(InvalidGrammarError, match="cannot be a name in this markup"):
        Tools([function("f", **{"a b": {}})]).in_form("qwen3_coder")


def test_what_no_form_can_have_is_refused_before_a_form_is_chosen():
    broken = function("f", **{"host:1,": {"$ref": "#/nowhere"}})
    with pytest.raises(InvalidGrammarError, match="nowhere"):
        Tools([broken])


@pytest.mark.parametrize("order", [1, -1])
def test_what_no_form_can_have_is_refused_before_what_one_cannot(order):
    tools = [function("f", **{"a:{": {}}), function("broken", a={"$ref": "#/nowhere"})]
    spec = Tools(tools[::order], at_once=False)
    with pytest.raises(InvalidGrammarError, match=r"tool 'broken': .*nowhere"):
        spec.in_form("gemma4").rules(MARKERS)
    with pytest.raises(InvalidGrammarError, match=r"tool 'f': .*Gemma's calls"):
        Tools(tools[:1], at_once=False).in_form("gemma4").rules(MARKERS)


@pytest.fixture
def counts(monkeypatch):
    """Schemas of tools that are written as rules, by their pointers."""
    counts = []

    def counted(*args, where, **more):
        counts.append(where)
        return WRITE(*args, where=where, **more)

    monkeypatch.setattr(call_arguments, "write", counted)
    monkeypatch.setattr(call_arguments, "_KEPT", SharedCache(1 << 20))
    return counts


def test_the_schemas_of_a_request_are_read_once_for_forms_with_json(counts):
    spec = Tools(TOOLS)
    for form in ("gemma4", "hermes", "llama", "mistral", "mistral_list"):
        assert spec.in_form(form).format == (None if form == "gemma4" else form)
    assert len(counts) == len(TOOLS)


def test_what_the_rules_of_many_tools_share_is_kept_once(monkeypatch):
    kept = SharedCache(128 << 20)
    monkeypatch.setattr(call_arguments, "_KEPT", kept)
    for i in range(20):
        text = {"type": "string", "minLength": i}
        written = Tools([function("f", text=text)], format="hermes").take_written()["f"]
    assert written.total > 50_000
    assert kept.nbytes < 5 * written.total


@pytest.mark.parametrize("format", ["gemma4", "hermes", "qwen3_coder"])
def test_tools_that_came_before_are_not_read_again(counts, format):
    new = function("new", at={"type": "integer"})
    first = Tools(TOOLS, format=format)
    expected = first.rules(MARKERS).nodes
    assert Tools(TOOLS, format=format).rules(MARKERS).nodes == expected
    Tools(TOOLS[::-1], format=format, choice="required").rules(MARKERS)
    Tools([new, *TOOLS], format=format).rules(MARKERS)
    places = [f"/tools/{i}/function/parameters" for i in (0, 1, 0)]
    assert counts == places
    strict = {"type": "function", "function": {**new["function"], "strict": True}}
    Tools([strict], format=format)
    Tools([new], format=format, property_order="any")
    assert len(counts) == 5


def test_the_process_that_compiles_tools_gets_what_is_written_of_them(counts, monkeypatch):
    tools = Tools(TOOLS)
    copied, sent = copy(tools), pickle.dumps(tools)
    task = pickle.dumps((tools, MARKERS, tools.take_written()))
    assert tools.take_written() is copied.take_written() is None
    monkeypatch.setattr(call_arguments, "_KEPT", SharedCache(1 << 20))  # as in another process
    counts.clear()
    build(*pickle.loads(task))
    assert not counts
    build(pickle.loads(sent), MARKERS)
    assert len(counts) == len(TOOLS)


def test_large_rules_of_tools_that_came_before_are_not_sent_to_another_process():
    parts = [{"type": "string", "pattern": f"a.{{7}}large {i}"} for i in range(100)]
    tools = [function(f"tool_{i}", text=part) for i, part in enumerate(parts)]
    for tool in tools:
        assert Tools([tool], format="hermes").take_written()
    assert Tools(tools, format="hermes").take_written() is None


def test_a_schema_too_deep_for_a_callers_stack_is_written_again_for_another(monkeypatch):
    errors = [RecursionError()]

    def deep(schema, **more):
        if errors:
            raise InvalidGrammarError("JSON schema", "nested too deeply", "/") from errors.pop()
        return WRITE(schema, **more)

    monkeypatch.setattr(call_arguments, "write", deep)
    tool = function("deep", below={"type": "integer"})
    assert [Tools([tool], format="hermes").checked for _ in range(2)] == [True, False]


def test_patterns_of_many_tools_are_left_to_the_compiler_once_they_take_long():
    parts = [{"type": "string", "pattern": f"a.{{7}}long {i}"} for i in range(16)]
    tools = [function(f"tool_{i}", text=part) for i, part in enumerate(parts)]
    written = Tools(tools, format="hermes").take_written()
    assert written
    assert len(written) < len(tools)


def test_a_schema_that_takes_too_much_at_once_is_tried_once(counts):
    large = function("f", a={"enum": [f"text {i}" for i in range(3000)]})
    for _ in range(2):
        spec = Tools([large], format="hermes")
        assert len(counts) == 1
    spec.rules(None)
    assert len(counts) == 2
    spec.rules(None)
    Tools([large], format="hermes")
    assert len(counts) == 2


def test_a_tool_that_is_refused_is_refused_each_time_with_its_own_place(counts):
    for i, tools in enumerate(([], TOOLS)):
        with pytest.raises(InvalidGrammarError, match=f"/tools/{i * 2}/function") as caught:
            Tools([*tools, function("broken", a={"$ref": "#/nowhere"})], format="hermes")
        assert "broken" in str(caught.value)


def test_two_names_of_one_form_make_equal_specs():
    specs = Tools(TOOLS, format="qwen3"), Tools(TOOLS, format="hermes")
    assert specs[0] == specs[1]
    assert specs[0].key == specs[1].key
    assert Tools(TOOLS).in_form("qwen3") == specs[1]
