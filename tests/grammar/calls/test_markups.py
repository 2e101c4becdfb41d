"""Calls in the markups of other models: their rules, and parsing them."""

import json

import pytest
from readers import misread
from spoken import accepts, objects, recogniser, sample, tools
from written_calls import (
    CALL,
    FORMS,
    INTEGER,
    NOW,
    ODD,
    STRING,
    TAGGED,
    TOOLS,
    pieces_of,
)

from dlm.grammar import (
    Answer,
    InvalidGrammarError,
    InvalidValueError,
    JsonSchema,
    Regex,
    ToolCall,
    Tools,
)


@pytest.mark.parametrize(("format", "write"), FORMS)
def test_calls_are_accepted_and_parsed(format, write):
    spec = Tools(TOOLS, format=format)
    text = f"Let me see.\n{write(CALL)}\n{write(NOW)}"
    assert accepts(spec, text)
    answer = spec.value(text)
    assert answer.tool_calls == (CALL, NOW)
    assert answer.content == "Let me see."
    assert not accepts(spec, f"{text} And so on.")
    assert spec.value("Just text.").content == "Just text."


@pytest.mark.parametrize(("format", "write"), FORMS)
def test_choices_are_enforced(format, write):
    call, now = write(CALL), write(NOW)
    for options, taken, refused in (
        ({"choice": "required"}, call, "text"),
        ({"choice": "required", "parallel": False}, now, now + now),
        ({"named": "now"}, now, call),
    ):
        reader = recogniser(Tools(TOOLS, format=format, **options))
        assert misread(reader.accepts, [taken], [refused]) == []


@pytest.mark.parametrize(("format", "write"), FORMS)
def test_arguments_that_do_not_fit_are_refused_by_the_rules_and_the_parser(format, write):
    spec = Tools(TOOLS, choice="required", format=format)
    broken = write(ToolCall("search-web", {"limit": 3}))
    assert not accepts(spec, broken)
    with pytest.raises(InvalidValueError, match=r"call of search-web: .* lacks 'query', a requ"):
        spec.value(broken)
    with pytest.raises(InvalidValueError, match="'other', which is not offered"):
        spec.value(write(ToolCall("other", {})))


@pytest.mark.parametrize("escaped", [False, True])
@pytest.mark.parametrize(("format", "write"), FORMS)
def test_calls_do_not_depend_on_how_their_tokens_are_cut(vocabulary, format, write, escaped):
    written = write(ODD)
    if escaped and format not in dict(TAGGED):
        written = written.replace("😀", "\\ud83d\\ude00")
    text, spec = f"Hm <tool.\n{written}\n{write(NOW)}", Tools(TOOLS, format=format)
    by_byte = [vocabulary.pieces.index(bytes([byte])) for byte in text.encode()]
    for tokens in (vocabulary.encode(text), by_byte):
        calls, answer = pieces_of(spec, vocabulary, tokens)
        assert answer.content == "Hm <tool."
        assert answer.tool_calls == (ODD, NOW)
        assert spec.read(tokens, vocabulary) == answer
        joined = [(name, "".join(pieces)) for name, pieces in calls]
        assert joined == [
            (call.name, json.dumps(call.arguments, ensure_ascii=False)) for call in (ODD, NOW)
        ]


@pytest.mark.parametrize("format", ["hermes", "llama"])
def test_arguments_are_passed_on_as_they_arrive_and_no_escape_is_divided(vocabulary, format):
    write = dict(FORMS)[format]
    text = write(ToolCall("search-web", {"query": "a" * 9})).replace("aaa", "\\ud83d\\ude00\\n", 1)
    by_byte = [vocabulary.pieces.index(bytes([byte])) for byte in text.encode()]
    ((_, pieces),), _ = pieces_of(Tools(TOOLS, format=format), vocabulary, by_byte)
    assert len(pieces) > 12
    assert "😀" in pieces
    assert "\\n" in pieces


@pytest.mark.parametrize("format", ["hermes", "qwen3_coder", "glm"])
def test_content_of_its_own_form_is_no_call_wherever_it_holds_an_opening(vocabulary, format):
    content = JsonSchema({"type": "array", "items": {"type": "string"}})
    spec = Tools(TOOLS, format=format, content=content)
    text, call = json.dumps(["<tool_call>", "<tool_call>\n<function="]), dict(FORMS)[format](NOW)
    assert misread(recogniser(spec).accepts, [text, call, f"\n{call}"], [f"[] {call}", "Hm."]) == []
    for read in (spec.value, lambda text: spec.read(vocabulary.encode(text), vocabulary)):
        assert read(text) == Answer(text, ())
        assert read(f"\n{call}").tool_calls == (NOW,)
        with pytest.raises(InvalidValueError):
            read("Hm.")
    assert spec.checked == (format in dict(TAGGED))
    assert Tools(TOOLS, format=format, content=Regex("[<a-z_>]*")).checked


def test_the_tokens_of_a_wrong_argument_are_found(vocabulary):
    schema = objects(a=objects(b={"type": "array", "items": {"type": "integer"}}))
    spec = tools(schema, format="hermes")
    text = '<tool_call>{"name": "f", "arguments": {"a": {"c": [1, 2], "b": [10, "no", 30]}}}'
    tokens = vocabulary.encode(f"{text}</tool_call>")
    with pytest.raises(InvalidValueError, match="call of f") as raised:
        spec.read(tokens, vocabulary)
    assert raised.value.span is not None
    first, last = raised.value.span
    assert '"' in vocabulary.text(tokens[first : last + 1])
    assert vocabulary.text(tokens[:first]).endswith(("[10, ", "[10,", '[10, "no'))


@pytest.mark.parametrize(
    ("format", "text", "problem"),
    [
        ("hermes", "<tool_call>\n", "not an object of a name"),
        ("hermes", '<tool_call>{"name": "now"}</tool_call>', "not an object of a name"),
        ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>', "not an object of"),
        ("hermes", '<tool_call>{"name": "now", "arguments": {}}', "</tool_call> is missing"),
        ("hermes", '<tool_call>{"name": "now", "arguments": "{}"}</tool_call>', "not an object of"),
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": "', "arguments do not end"),
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": }}</tool_call>', "not JSON"),
        ("llama", '{"name": "now"', "not an object of a name and parameters"),
        ("llama", '{"name": "now", "arguments": {}}', "not an object of a name and parameters"),
        ("qwen3_coder", "<tool_call>\n<function=", "a function's name is missing"),
        ("qwen3_coder", "<tool_call>\n<function=now>\n<parameter=a>\n3", "</parameter> is missing"),
        ("qwen3_coder", "<tool_call>\n<function=now>\n</function>", "are missing"),
        ("glm", "<tool_call>now\n", "a function's name is missing"),
        ("glm", "<tool_call>now<arg_key>a</arg_key>", "</tool_call> is missing"),
        ("glm", "<tool_call>now<arg_key>a</arg_key>\n<arg_value>3", "</arg_value> is missing"),
    ],
)
def test_a_malformed_call_is_refused_with_its_place(format, text, problem):
    with pytest.raises(InvalidValueError, match=f"malformed at character .*{problem}"):
        Tools(TOOLS, format=format).value(f"Hm. {text}")


@pytest.mark.parametrize(("format", "write"), FORMS)
def test_the_keywords_of_a_schema_are_enforced_in_every_markup(format, write):
    schema = {
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date"},
            "size": {"type": "string", "maxLength": 3, "pattern": "a"},
            "items": {"type": "array", "items": {"type": "integer"}, "maxItems": 1},
            "plan": {"type": "string", "format": "stardate", "nullable": True},
            "of x": {"not": {"type": "string"}},
        },
        "allOf": [{"required": ["day"]}],
    }
    if format in dict(TAGGED):
        del schema["properties"]["of x"]
    spec = tools(schema, format=format)
    day = {"day": "2024-02-29"}
    for more in ({}, {"size": "bab"}, {"items": [3]}, {"plan": "x"}, {"plan": None}):
        call = ToolCall("f", day | more)
        assert accepts(spec, write(call)), more
        assert spec.value(write(call)).tool_calls == (call,)
    for wrong in ({"day": "2023-02-29"}, {"size": "a"}, day | {"size": "baba"}, day | {"z": 1}):
        assert not accepts(spec, write(ToolCall("f", wrong))), wrong
    assert not accepts(spec, write(ToolCall("f", day | {"items": [1, 2]})))
    for seed in range(6):
        assert spec.value(sample(spec.rules(None), seed)).tool_calls


PLACE = {
    "type": "object",
    "properties": {"city": STRING, "near": {"$ref": "#/$defs/place"}},
    "required": ["city"],
}


NESTED = {
    "$defs": {"place": PLACE},
    "type": "object",
    "properties": {
        "place": {"$ref": "#/$defs/place"},
        "labels": {"type": "object", "additionalProperties": INTEGER},
        "pair": {"type": "array", "prefixItems": [STRING, INTEGER], "items": False, "minItems": 2},
        "when": {"anyOf": [{"type": "integer"}, {"type": "string", "format": "date"}]},
        "or": {"oneOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/place"}}]},
    },
    "required": ["place"],
}


@pytest.mark.parametrize(("format", "write"), FORMS)
def test_arguments_may_be_nested_by_reference_dicts_tuples_and_unions(format, write):
    spec = tools(NESTED, format=format)
    place = {"city": 'a</arg_value>"', "near": {"city": "b"}}
    arguments = {
        "place": place,
        "labels": {"a": 1, "b": 2},
        "pair": ["x", 3],
        "when": "2024-02-29",
        "or": [place, {"city": ""}],
    }
    for when in ("2024-02-29", 5):
        call = ToolCall("f", arguments | {"when": when})
        assert accepts(spec, write(call))
        assert spec.value(write(call)).tool_calls == (call,)
    for wrong in (
        {"place": {"near": place}},
        {"labels": {"a": "1"}},
        {"pair": ["x"]},
        {"when": "2023-02-29"},
        {"or": [None]},
    ):
        assert not accepts(spec, write(ToolCall("f", arguments | wrong))), wrong


@pytest.mark.parametrize("value", ["NaN", "1e999", '"\\ud800"'])
def test_a_call_that_is_not_json_for_every_reader_is_malformed(value):
    text = f'<tool_call>{{"name": "f", "arguments": {{"a": {value}}}}}</tool_call>'
    with pytest.raises(InvalidValueError, match="malformed at character"):
        tools(objects(a={}), format="hermes").value(text)


@pytest.mark.parametrize(("format", "write"), FORMS)
@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, "/properties/a/$ref"),
        ({"properties": {"a": {"uniqueItems": True}}}, "/properties/a/uniqueItems"),
        ({"type": "array"}, ""),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused_with_its_place(format, write, schema, where):
    with pytest.raises(InvalidGrammarError, match=r"tools .* tool 'f'") as raised:
        tools(schema, strict=True, format=format)
    assert raised.value.where == "/tools/0/function/parameters" + where
