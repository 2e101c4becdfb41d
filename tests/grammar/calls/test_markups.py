"""Calls in the markups of other models: their rules, and parsing them."""

import json

import pytest
from readers import misread
from recogniser import Recogniser
from spoken import accepts, objects, recogniser, sample, tools

from dlm.grammar import (
    Answer,
    InvalidGrammarError,
    InvalidValueError,
    JsonSchema,
    Regex,
    ToolCall,
    Tools,
    Vocabulary,
)
from dlm.grammar.calls import MARKUPS, AnswerReading
from dlm.grammar.vocabulary import MistralMarkers

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
QUERY = 'a "b" </tool_call> {é}'
ARGUMENTS = {"query": QUERY, "limit": 3, "tags": ["x", "}"], "sort": 3, "site": None}
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


def pieces_of(spec, vocabulary, tokens):
    """Return the name and the pieces of arguments of each call, and the answer, token by token."""
    reader, calls = spec.reader(vocabulary), []
    for token in tokens:
        for delta in reader.feed([token]):
            if delta.name is not None:
                assert delta.index == len(calls)
                calls.append((delta.name, []))
            elif delta.arguments:
                calls[delta.index][1].append(delta.arguments)
    return calls, reader.answer()


ODD = ToolCall("search-web", ARGUMENTS | {"query": 'é\u2028😀 "\\" \n </tool_call>{"name": '})


@pytest.mark.parametrize("escaped", [False, True])
@pytest.mark.parametrize(("format", "write"), FORMS)
def test_calls_do_not_depend_on_how_their_tokens_are_cut(vocabulary, format, write, escaped):
    written = write(ODD)
    if escaped and format != "qwen3_coder":
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


def test_calls_after_mistrals_control_tokens_are_accepted_and_parsed(vocabulary):
    control = sorted(vocabulary.control - {*vocabulary.stops, vocabulary.pad})[-2:]
    opened, separated = control
    marked = Vocabulary(
        vocabulary.pieces,
        control=vocabulary.control,
        stops=vocabulary.stops,
        pad=vocabulary.pad,
        thought=None,
        encode=vocabulary.encode,
        call=MistralMarkers(opened, separated),
    )
    assert marked.calls == "mistral"
    spec, body = Tools(TOOLS, format="mistral"), json.dumps(ARGUMENTS, ensure_ascii=False)
    grammar = Recogniser(spec.rules(marked.call), {opened: "\ue001", separated: "\ue002"})
    assert grammar.accepts(f"Hm.\ue001search-web\ue002{body}\ue001now\ue002{{}}")
    assert not grammar.accepts("\ue001now\ue002{} Hm.")
    tokens = [*marked.encode("Hm."), opened, *marked.encode("search-web"), separated]
    tokens += [*marked.encode(body), opened, *marked.encode("now"), separated, *marked.encode("{}")]
    calls, answer = pieces_of(spec, marked, tokens)
    assert answer == Answer("Hm.", (CALL, NOW))
    assert [name for name, _ in calls] == ["search-web", "now"]
    assert spec.read(marked.encode("[TOOL_CALLS]now[ARGS]{}"), marked).tool_calls == ()
    with pytest.raises(InvalidValueError, match="not a name, \\[ARGS\\] and arguments"):
        spec.read(tokens[:5], marked)
    with pytest.raises(InvalidValueError, match="hold a control token"):
        spec.read([*tokens[: tokens.index(separated) + 3], opened], marked)


@pytest.mark.parametrize("format", ["hermes", "qwen3_coder"])
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
    assert spec.checked == (format == "qwen3_coder")
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
    ],
)
def test_a_malformed_call_is_refused_with_its_place(format, text, problem):
    with pytest.raises(InvalidValueError, match=f"malformed at character .*{problem}"):
        Tools(TOOLS, format=format).value(f"Hm. {text}")


def test_unquoted_strings_that_look_like_json_stay_strings():
    texts = ["3", "null", '"quoted"', " spaced ", "two\nlines", "", "{}"]
    spec = Tools(TOOLS, format="qwen3_coder")
    for text in texts:
        call = ToolCall("search-web", {"query": text})
        assert spec.value(qwen_coder(call)).tool_calls == (call,)


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
    if format == "qwen3_coder":
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
def test_the_schema_decides_whether_an_unquoted_value_is_a_string_or_json(schema, written, read):
    answer = tools(schema, format="qwen3_coder").value(qwen_coder(ToolCall("f", written)))
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


def test_strings_within_json_may_contain_the_end_tag_of_an_argument():
    call = ToolCall("search-web", {"query": "a", "tags": ["</parameter>", "x</function>"]})
    spec = Tools(TOOLS, format="qwen3_coder")
    assert accepts(spec, qwen_coder(call))
    assert spec.value(qwen_coder(call)).tool_calls == (call,)


def test_what_rules_cannot_hold_is_refused_for_a_strict_tool_and_else_checked():
    distinct = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    with pytest.raises(InvalidGrammarError, match="/properties/a/uniqueItems"):
        tools(objects(a=distinct), strict=True, format="qwen3_coder")
    spec = tools(objects(a=distinct), format="qwen3_coder")
    repeated, once = (qwen_coder(ToolCall("f", {"a": items})) for items in ([1, 1], [1, 2]))
    assert accepts(spec, once)
    assert spec.value(once).tool_calls
    with pytest.raises(InvalidValueError, match=r"call of f: .* does not fit the schema"):
        spec.value(repeated)


def test_counts_of_many_properties_are_rules():
    many = {"properties": {f"p{i}": {"type": "integer"} for i in range(50)}, "minProperties": 45}
    spec = tools(many, strict=True, format="qwen3_coder")
    few, enough = (
        qwen_coder(ToolCall("f", {f"p{i}": i for i in range(count)})) for count in (44, 45)
    )
    assert accepts(spec, enough)
    assert not accepts(spec, few)


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


def test_a_value_that_cannot_be_checked_is_json_unless_the_schema_takes_its_text():
    deep = "[" * 100 + "]" * 100
    nested = {"type": "array", "items": {"$ref": "#/$defs/t"}}
    for schema, is_json in ((nested, True), ({"anyOf": [nested, STRING]}, False)):
        root = {"$defs": {"t": schema}, "properties": {"n": {"$ref": "#/$defs/t"}}}
        answer = tools(root, format="qwen3_coder").value(qwen_coder(ToolCall("f", {"n": deep})))
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


def test_an_open_call_in_tags_is_read_once_however_many_its_pieces():
    names = [f"p{i}" for i in range(20)]
    spec = tools(objects(s=STRING, **dict.fromkeys(names, INTEGER)), format="qwen3_coder")
    arguments = dict.fromkeys(names, 3) | {"s": "a <b> </par" * 200}
    judged = []

    def accepts(name, argument, value, text):
        judged.append(argument)
        return spec._accepts(name, argument, value, text)

    reader = MARKUPS["qwen3_coder"].reader(AnswerReading(accepts=accepts))
    reader._written.text = Counted()
    text = "Hm. " * 200 + qwen_coder(ToolCall("f", arguments))
    Counted.searched = 0
    for character in text:
        reader.feed_text(character)
    assert reader.answer().tool_calls == (ToolCall("f", arguments),)
    assert judged == names
    assert Counted.searched < 30 * len(text)


@pytest.mark.parametrize(
    "text", ['["</parameter>", 12, "a"]', '{"</parameter>": "\\u0041"}', "[1, 2", '["a</par"]']
)
def test_a_value_read_piece_by_piece_is_the_one_that_is_read_whole(text):
    schema = objects(a={"type": ["array", "object", "string"], "items": {}}, b=INTEGER)
    schema["properties"]["a"]["additionalProperties"] = True
    spec = tools(schema, format="qwen3_coder")
    body = f"<parameter=a>{text}</parameter>\n<parameter=b>4</parameter>"
    call = f"<tool_call>\n<function=f>\n{body}\n</function>\n</tool_call>"
    whole = spec.value(call)
    assert isinstance(whole.tool_calls[0].arguments["a"], str) == (text == "[1, 2")
    for size in (1, 2, 7):
        reader, deltas = spec.reader(None), []
        for i in range(0, len(call), size):
            deltas += reader.feed_text(call[i : i + size])
        assert reader.answer() == whole
        arguments = json.loads("".join(delta.arguments for delta in deltas))
        assert arguments == whole.tool_calls[0].arguments
