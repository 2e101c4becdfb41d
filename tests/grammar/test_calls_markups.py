"""Calls in other models' forms: their rules, and the way back."""

import json

import pytest
from spoken import accepts, sample

from dlm.grammar import InvalidGrammarError, InvalidValueError, ToolCall, Tools

SEARCH = {
    "name": "search-web",
    "parameters": {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "sort": {"enum": ["by date", 3]},
            "site": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["query"],
    },
}
TOOLS = [{"type": "function", "function": f} for f in (SEARCH, {"name": "now"})]
ARGUMENTS = {
    "query": 'a "b" </tool_call> {é}',
    "limit": 3,
    "tags": ["x", "}"],
    "sort": 3,
    "site": None,
}
CALL = ToolCall("search-web", ARGUMENTS)
NOW = ToolCall("now", {})


def hermes(call):
    body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def llama(call):
    return json.dumps({"name": call.name, "parameters": call.arguments}, ensure_ascii=False)


def qwen_coder(call):
    arguments = "\n".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>"
        for key, value in call.arguments.items()
    )
    return f"<tool_call>\n<function={call.name}>\n{arguments}\n</function>\n</tool_call>"


FORMS = [("hermes", hermes), ("qwen3", hermes), ("llama", llama), ("qwen3_coder", qwen_coder)]


@pytest.mark.parametrize(("format", "write"), FORMS)
def test_calls_are_taken_and_read(format, write):
    spec = Tools(TOOLS, format=format)
    text = f"Let me see.\n{write(CALL)}\n{write(NOW)}"
    assert accepts(spec, text)
    answer = spec.value(text)
    assert answer.tool_calls == (CALL, NOW)
    assert answer.content == "Let me see.\n\n"
    assert spec.value("Just text.").content == "Just text."


@pytest.mark.parametrize(("format", "write"), FORMS)
def test_choices_are_kept(format, write):
    required = Tools(TOOLS, choice="required", format=format)
    assert accepts(required, write(CALL))
    assert not accepts(required, "text")
    one = Tools(TOOLS, choice="required", parallel=False, format=format)
    assert accepts(one, write(NOW))
    assert not accepts(one, write(NOW) + write(NOW))
    named = Tools(TOOLS, named="now", format=format)
    assert accepts(named, write(NOW))
    assert not accepts(named, write(CALL))


@pytest.mark.parametrize(("format", "write"), FORMS)
def test_arguments_that_do_not_fit_are_refused_both_ways(format, write):
    spec = Tools(TOOLS, choice="required", format=format)
    broken = write(ToolCall("search-web", {"limit": 3}))
    assert not accepts(spec, broken)
    with pytest.raises(
        InvalidValueError, match=r"call of search-web: .* lacks 'query', a required"
    ):
        spec.value(broken)
    with pytest.raises(InvalidValueError, match="'other', which is not offered"):
        spec.value(write(ToolCall("other", {})))


@pytest.mark.parametrize(
    ("format", "text", "problem"),
    [
        ("hermes", "<tool_call>\n", "not JSON"),
        ("hermes", '<tool_call>{"name": "now"}</tool_call>', "not an object of a name"),
        ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>', "not an object of"),
        ("hermes", '<tool_call>{"name": "now", "arguments": {}}', "</tool_call> is missing"),
        ("hermes", '<tool_call>{"name": "now", "arguments": "{}"}</tool_call>', "not an object of"),
        ("llama", '{"name": "now"', "not JSON"),
        ("llama", '{"name": "now", "arguments": {}}', "not an object of a name and parameters"),
        ("qwen3_coder", "<tool_call>\n<function=", "a function's name is missing"),
        ("qwen3_coder", "<tool_call>\n<function=now>\n<parameter=a>\n3", "</parameter> is missing"),
        ("qwen3_coder", "<tool_call>\n<function=now>\n</function>", "are missing"),
    ],
)
def test_a_malformed_call_says_where(format, text, problem):
    with pytest.raises(InvalidValueError, match=f"malformed at character .*{problem}"):
        Tools(TOOLS, format=format).value(f"Hm. {text}")


def test_bare_strings_stay_as_they_are():
    """In XML they may read like JSON."""
    texts = ["3", "null", '"quoted"', " spaced ", "two\nlines", "", "{}"]
    spec = Tools(TOOLS, format="qwen3_coder")
    for text in texts:
        call = ToolCall("search-web", {"query": text})
        assert spec.value(qwen_coder(call)).tool_calls == (call,)


@pytest.mark.parametrize(("format", "write"), FORMS)
def test_schemas_are_read_as_json_schema_reads_them(format, write):
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
    if format == "qwen3_coder":
        del schema["properties"]["of x"]
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    spec = Tools([tool], choice="required", format=format)
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


INTEGER, STRING = {"type": "integer"}, {"type": "string"}
FORM = {"properties": {"s": STRING, "t": {}}, "required": ["s", "t"]}


@pytest.mark.parametrize(
    ("schema", "written", "read"),
    [
        ({"additionalProperties": STRING}, {"zip": "5"}, {"zip": "5"}),
        ({"additionalProperties": INTEGER}, {"zip": "5"}, {"zip": 5}),
        ({"patternProperties": {"p$": STRING}, "additionalProperties": INTEGER},
         {"zip": "5", "n": "5"}, {"zip": "5", "n": 5}),
        ({"$ref": "#/$defs/p", "$defs": {"p": FORM}}, {"s": "5", "t": "6"}, {"s": "5", "t": 6}),
        ({"anyOf": [FORM, {"properties": {"s": {"type": "null"}}}]}, {"s": "5", "t": "1"},
         {"s": "5", "t": 1}),
        ({"properties": {"a%20b": INTEGER}}, {"a%20b": "5"}, {"a%20b": 5}),
        ({"properties": {"s": {"type": ["string", "number"]}}}, {"s": "NaN"}, {"s": "NaN"}),
        ({"properties": {"s": {"type": ["string", "number"]}}}, {"s": "1e999"}, {"s": "1e999"}),
        ({"properties": {"s": {}}}, {"s": '["\\ud800"]'}, {"s": '["\\ud800"]'}),
    ],
)  # fmt: skip
def test_what_the_schema_says_tells_bare_strings_from_json(schema, written, read):
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    (call,) = (
        Tools([tool], format="qwen3_coder").value(qwen_coder(ToolCall("f", written))).tool_calls
    )
    assert call.arguments == read
    json.loads(call.to_openai("x")["function"]["arguments"].encode())


def test_line_feeds_around_a_bare_string_are_none_of_it():
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 2}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    spec = Tools([tool], choice="required", format="qwen3_coder")
    texts = ["a", "\na", "a\n", "\nab\n", "\n\n", "\n\n\n", "", "\nabc\n", "abc", "\n\na\n"]
    for text in texts:
        body = f"<parameter=a>{text}</parameter>"
        answer = f"<tool_call>\n<function=f>\n{body}\n</function>\n</tool_call>"
        bare = text.removeprefix("\n").removesuffix("\n")
        assert accepts(spec, answer) == (len(bare) <= 2), text
        if len(bare) <= 2:
            assert spec.value(answer).tool_calls == (ToolCall("f", {"a": bare}),)


def test_strings_within_json_may_hold_the_mark_that_ends_an_argument():
    call = ToolCall("search-web", {"query": "a", "tags": ["</parameter>", "x</function>"]})
    spec = Tools(TOOLS, format="qwen3_coder")
    assert accepts(spec, qwen_coder(call))
    assert spec.value(qwen_coder(call)).tool_calls == (call,)


def test_more_properties_than_can_be_counted_are_refused_of_a_strict_tool_and_else_checked():
    many = {"properties": {f"p{i}": {"type": "integer"} for i in range(50)}, "minProperties": 45}
    function = {"name": "f", "parameters": many}
    with pytest.raises(InvalidGrammarError, match="too many rules to count"):
        Tools([{"type": "function", "function": function | {"strict": True}}], format="qwen3_coder")
    spec = Tools([{"type": "function", "function": function}], format="qwen3_coder")
    few, enough = (
        qwen_coder(ToolCall("f", {f"p{i}": i for i in range(count)})) for count in (44, 45)
    )
    assert accepts(spec, enough)
    assert spec.value(enough).tool_calls
    with pytest.raises(InvalidValueError, match=r"call of f: .* does not fit the schema"):
        spec.value(few)


@pytest.mark.parametrize("value", ["NaN", "1e999", '"\\ud800"'])
def test_what_is_no_json_for_everybody_is_no_call(value):
    text = f'<tool_call>{{"name": "f", "arguments": {{"a": {value}}}}}</tool_call>'
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {}}}}}
    with pytest.raises(InvalidValueError, match="malformed at character"):
        Tools([tool], format="hermes").value(text)


@pytest.mark.parametrize(("format", "write"), FORMS)
def test_what_cannot_be_written_is_refused_with_its_place(format, write):
    for schema, where in (
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, "/properties/a/$ref"),
        ({"properties": {"a": {"uniqueItems": True}}}, "/properties/a/uniqueItems"),
        ({"type": "array"}, ""),
    ):
        function = {"name": "f", "parameters": schema, "strict": True}
        with pytest.raises(InvalidGrammarError, match=r"tools .* tool 'f'") as raised:
            Tools([{"type": "function", "function": function}], format=format)
        assert raised.value.where == "/tools/0/function/parameters" + where
