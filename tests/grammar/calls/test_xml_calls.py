"""Calls in tags, whose strings have no quotes: the schema decides what a value is."""

import json

import pytest
from spoken import accepts, objects, tools
from written_calls import (
    INTEGER,
    NOW,
    STRING,
    TAGGED,
    TOOLS,
    glm,
    qwen_coder,
)

from dlm.grammar import (
    InvalidGrammarError,
    InvalidValueError,
    ToolCall,
    Tools,
)
from dlm.grammar.calls import MARKUPS, AnswerReading, xml_calls

OBJECT = {"properties": {"s": STRING, "t": {}}, "required": ["s", "t"]}


@pytest.mark.parametrize(("format", "write"), TAGGED)
def test_unquoted_strings_that_look_like_json_stay_strings(format, write):
    texts = ["3", "null", '"quoted"', " spaced ", "two\nlines", "", "{}"]
    spec = Tools(TOOLS, format=format)
    for text in texts:
        call = ToolCall("search-web", {"query": text})
        assert accepts(spec, write(call))
        assert spec.value(write(call)).tool_calls == (call,)


@pytest.mark.parametrize(("format", "write"), TAGGED)
@pytest.mark.parametrize(
    ("schema", "written", "read"),
    [
        ({"additionalProperties": STRING}, {"zip": "5"}, {"zip": "5"}),
        ({"additionalProperties": INTEGER}, {"zip": "5"}, {"zip": 5}),
        ({"patternProperties": {"p$": STRING}, "additionalProperties": INTEGER},
         {"zip": "5", "n": "5"}, {"zip": "5", "n": 5}),
        ({"$ref": "#/$defs/p", "$defs": {"p": OBJECT}}, {"s": "5", "t": "6"}, {"s": "5", "t": 6}),
        ({"anyOf": [OBJECT, {"properties": {"s": {"type": "null"}}}]}, {"s": "5", "t": "1"},
         {"s": "5", "t": 1}),
        ({"properties": {"a%20b": INTEGER}}, {"a%20b": "5"}, {"a%20b": 5}),
        ({"properties": {"s": {"type": ["string", "number"]}}}, {"s": "NaN"}, {"s": "NaN"}),
        ({"properties": {"s": {"type": ["string", "number"]}}}, {"s": "1e999"}, {"s": "1e999"}),
        ({"properties": {"s": {}}}, {"s": '["\\ud800"]'}, {"s": '["\\ud800"]'}),
    ],
)  # fmt: skip
def test_the_schema_decides_whether_an_unquoted_value_is_a_string_or_json(
    format, write, schema, written, read
):
    answer = tools(schema, format=format).value(write(ToolCall("f", written)))
    (call,) = answer.tool_calls
    assert call.arguments == read
    json.loads(call.to_openai("x")["function"]["arguments"].encode())


def test_a_line_feed_at_either_end_of_an_unquoted_string_does_not_belong_to_it():
    spec = tools(objects(a={"type": "string", "maxLength": 2}), format="qwen3_coder")
    texts = ["a", "\na", "a\n", "\nab\n", "\n\n", "\n\n\n", "", "\nabc\n", "abc", "\n\na\n"]
    for text in texts:
        body = f"<parameter=a>{text}</parameter>"
        answer = f"<tool_call>\n<function=f>\n{body}\n</function>\n</tool_call>"
        value = text.removeprefix("\n").removesuffix("\n")
        assert accepts(spec, answer) == (len(value) <= 2), text
        if len(value) <= 2:
            assert spec.value(answer).tool_calls == (ToolCall("f", {"a": value}),)


def test_all_between_the_tags_of_glm_is_the_string():
    spec = tools(objects(a={"type": "string", "maxLength": 3}), format="glm")
    for text in ("a", "\na", "a\n", "\na\n", "\n\n\n", "", " ", "abcd", "\nabc"):
        answer = glm(ToolCall("f", {"a": text}))
        assert accepts(spec, answer) == (len(text) <= 3), text
        if len(text) <= 3:
            assert spec.value(answer).tool_calls == (ToolCall("f", {"a": text}),)


def test_white_space_between_the_tags_of_glm_is_free_and_names_end_at_a_tag():
    spec = Tools(TOOLS, format="glm", parallel=False)
    call = ToolCall("search-web", {"query": "a", "limit": 3})
    lines = glm(call)
    for text in (lines, lines.replace("\n", ""), lines.replace("\n", " ")):
        assert accepts(spec, text)
        assert spec.value(text).tool_calls == (call,)
    assert accepts(spec, "<tool_call>now</tool_call>")
    assert spec.value("<tool_call>now</tool_call>").tool_calls == (NOW,)
    assert not accepts(spec, "<tool_call>\nnow</tool_call>")
    assert not accepts(spec, lines.replace("</arg_key>\n", "</arg_key>a"))


@pytest.mark.parametrize(
    ("format", "write", "end"),
    [("qwen3_coder", qwen_coder, "</parameter>"), ("glm", glm, "</arg_value>")],
)
def test_the_end_tag_of_an_argument_is_in_no_bare_string_but_may_be_in_json(format, write, end):
    spec = Tools(TOOLS, format=format)
    call = ToolCall("search-web", {"query": "a", "tags": [end, f"x{end}", "</tool_call>"]})
    assert accepts(spec, write(call))
    assert spec.value(write(call)).tool_calls == (call,)
    for text in (end, f"a{end}b", f"a{end}\n{end}"):
        assert not accepts(spec, write(ToolCall("search-web", {"query": text})))
    near = ToolCall("search-web", {"query": f"{end[:-1]} {end[1:]}"})
    assert accepts(spec, write(near))
    assert spec.value(write(near)).tool_calls == (near,)


@pytest.mark.parametrize(("format", "write"), TAGGED)
def test_what_rules_cannot_hold_is_refused_for_a_strict_tool_and_else_checked(format, write):
    distinct = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    with pytest.raises(InvalidGrammarError, match="/properties/a/uniqueItems"):
        tools(objects(a=distinct), strict=True, format=format)
    spec = tools(objects(a=distinct), format=format)
    repeated, once = (write(ToolCall("f", {"a": items})) for items in ([1, 1], [1, 2]))
    assert accepts(spec, once)
    assert spec.value(once).tool_calls
    with pytest.raises(InvalidValueError, match=r"call of f: .* does not fit the schema"):
        spec.value(repeated)


@pytest.mark.parametrize(("format", "write"), TAGGED)
def test_counts_of_many_properties_are_rules(format, write):
    many = {"properties": {f"p{i}": {"type": "integer"} for i in range(50)}, "minProperties": 45}
    spec = tools(many, strict=True, format=format)
    few, enough = (write(ToolCall("f", {f"p{i}": i for i in range(count)})) for count in (44, 45))
    assert accepts(spec, enough)
    assert not accepts(spec, few)


@pytest.mark.parametrize(("format", "write"), TAGGED)
def test_a_value_that_cannot_be_checked_is_json_unless_the_schema_takes_its_text(format, write):
    deep = "[" * 100 + "]" * 100
    nested = {"type": "array", "items": {"$ref": "#/$defs/t"}}
    for schema, is_json in ((nested, True), ({"anyOf": [nested, STRING]}, False)):
        root = {"$defs": {"t": schema}, "properties": {"n": {"$ref": "#/$defs/t"}}}
        answer = tools(root, format=format).value(write(ToolCall("f", {"n": deep})))
        (call,) = answer.tool_calls
        assert call.arguments == {"n": json.loads(deep) if is_json else deep}


class Counted(str):
    """Text that counts the characters in which something is looked for."""

    __slots__ = ()
    searched = 0

    def find(self, part, begin=0):
        Counted.searched += len(self) - begin
        return super().find(part, begin)

    def __add__(self, more):
        return Counted(super().__add__(more))


@pytest.mark.parametrize(("format", "write"), TAGGED)
def test_an_open_call_in_tags_is_read_once_however_many_its_pieces(format, write):
    names = [f"p{i}" for i in range(20)]
    spec = tools(objects(s=STRING, **dict.fromkeys(names, INTEGER)), format=format)
    arguments = dict.fromkeys(names, 3) | {"s": "a <b> </par </arg" * 200}
    judged = []

    def accepts(name, argument, value, text):
        judged.append(argument)
        return spec._accepts(name, argument, value, text)

    reader = MARKUPS[format].reader(AnswerReading(accepts=accepts))
    reader._written.text = Counted()
    text = "Hm. " * 200 + write(ToolCall("f", arguments))
    Counted.searched = 0
    for character in text:
        reader.feed_text(character)
    assert reader.answer().tool_calls == (ToolCall("f", arguments),)
    assert judged == names
    assert Counted.searched < 30 * len(text)


@pytest.mark.parametrize(
    "text",
    ['["END", 12]', '["CALL", 12]', '["', '{"END": "\\u0041"}', "[1, 2", '["a</par", "b</arg"]'],
)
@pytest.mark.parametrize(
    ("format", "write", "end"),
    [("qwen3_coder", qwen_coder, "</parameter>"), ("glm", glm, "</arg_value>")],
)
def test_a_value_read_piece_by_piece_is_the_one_that_is_read_whole(format, write, end, text):
    schema = objects(a={"type": ["array", "object", "string"], "items": {}}, b=INTEGER)
    schema["properties"]["a"]["additionalProperties"] = True
    spec = tools(schema, format=format)
    call_end = write(ToolCall("f", {"a": "x"})).partition("x")[2].replace("\n", "")
    text = text.replace("END", end).replace("CALL", call_end)
    call = write(ToolCall("f", {"a": text, "b": 4}))
    whole = spec.value(call)
    assert isinstance(whole.tool_calls[0].arguments["a"], str) == (text in ("[1, 2", '["'))
    for size in (1, 2, 7):
        reader, deltas = spec.reader(None), []
        for i in range(0, len(call), size):
            deltas += reader.feed_text(call[i : i + size])
        deltas += reader.end()
        assert reader.answer() == whole
        arguments = json.loads("".join(delta.arguments for delta in deltas))
        assert arguments == whole.tool_calls[0].arguments


@pytest.mark.parametrize("part", ["<parameter=b>1</parameter>", "</function></tool_call>", '","'])
def test_a_value_that_stays_unsure_is_read_a_few_times_however_many_its_pieces(part, monkeypatch):
    decoded, read = xml_calls.decoded, []

    def counted(text, at):
        read.append(len(text) - at)
        return decoded(text, at)

    monkeypatch.setattr(xml_calls, "decoded", counted)
    spec = tools(objects(a={"type": ["array", "string"]}, b={}), format="qwen3_coder")
    text = '<tool_call>\n<function=f><parameter=a>["</parameter></function></tool_call>'
    reader = spec.reader(None)
    for piece in (text, *[f"{part}</tool_call>"] * 400):
        reader.feed_text(piece)
    length = len(text) + 400 * len(f"{part}</tool_call>")
    assert 0 < sum(read) < 12 * length
    tail = '"]</parameter></function></tool_call>'
    reader.feed_text(tail)
    (call,) = reader.answer().tool_calls
    assert isinstance(call.arguments["a"], list)
