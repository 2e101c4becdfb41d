"""Calls in vLLM: the plugin's reader against the server's, with answers cut at every token."""

import json
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace

import pytest
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from native_calls import answer_tokens, spell
from spoken import accepts, call_text
from typed_tools import ARGUMENTS, NAMES, SCHEMAS, exactly
from values import V

from dlm.events import Committed
from dlm.grammar import InvalidValueError, Reasoning, ToolCall, Tools, Vocabulary
from dlm.integrations.vllm.calls import (
    AnswerReader,
    MessageClasses,
    WholeAnswer,
    reads_calls,
    reads_deltas,
)
from dlm.integrations.vllm.own import GEMMA
from dlm.integrations.vllm.payload import TOOLS, Reading, ToolsText
from dlm.openai.items import ItemReader
from dlm.request import Request

STOP = 106
SPECS = {
    name: Tools([{"type": "function", "function": {"name": "f", "parameters": schema}}])
    for name, schema in SCHEMAS.items()
}


@pytest.fixture(scope="module")
def vocabulary(chat):
    return Vocabulary.from_tokenizer(chat.tokenizer, V, (1, STOP, 50), 0)


@pytest.fixture(scope="module")
def reading(vocabulary):
    return reading_in(vocabulary)


def reading_in(vocabulary, reasoning=None, spec=SPECS["deep"]):
    return Reading(vocabulary, spec, reasoning, GEMMA.markup)


def pieces_of(tokens, size):
    return [tokens[i : i + size] for i in range(0, len(tokens), size)]


def read(reading, pieces, apart=True):
    reader, answer = AnswerReader(reading, apart), WholeAnswer()
    for i, piece in enumerate(pieces, 1):
        answer.add(reader.feed(piece, ended=i == len(pieces)))
    return answer


def read_by_server(vocabulary, spec, pieces):
    """Return the arguments of the calls as the server's reader of streams has them."""
    reader = ItemReader(Request(prompt="x", constraint=spec), vocabulary)
    for piece in pieces:
        reader.feed(Committed(request=0, tokens=piece, answer=piece, text="", reasoning=""))
    return [item.text for item in reader.items if item.kind == "call"]


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_the_values_that_the_grammar_wrote(name, vocabulary, reading):
    spec, arguments = SPECS[name], ARGUMENTS[name]
    assert accepts(spec, call_text("f", arguments))
    tokens = [*answer_tokens(vocabulary, ToolCall("f", arguments)), STOP]
    whole = read(reading, [tokens])
    (call,) = whole.calls
    assert (call.name, whole.content, whole.reasoning) == ("f", "", "")
    assert exactly(json.loads(call.arguments)) == exactly(arguments)
    for size in (1, 2, 5):
        pieces = pieces_of(tokens, size)
        assert read(reading, pieces) == whole
        assert read_by_server(vocabulary, spec, pieces) == [call.arguments]
    for cut in range(1, len(tokens)):
        assert read(reading, [tokens[:cut], tokens[cut:]]) == whole


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
    | st.sampled_from(['<|"|>', "null", "1e400", "-0", "007", "<tool_call|>", "a\\", '"']),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.from_regex(r"[a-z]{1,3}", fullmatch=True), inner, max_size=3)
    ),
    max_leaves=8,
)
ARGUMENT_LISTS = st.lists(
    st.dictionaries(st.from_regex(r"[a-z]{1,3}", fullmatch=True), VALUES, max_size=3),
    min_size=1,
    max_size=3,
)


@examples(60)
@given(ARGUMENT_LISTS, st.sampled_from(["", "Hello, é🙂. "]), st.integers(1, 7))
def test_several_calls_after_text_are_read_alike_in_any_pieces(
    vocabulary, reading, arguments, text, size
):
    calls = [ToolCall(f"f{i}", each) for i, each in enumerate(arguments)]
    tokens = [*answer_tokens(vocabulary, text, *calls), STOP]
    pieces = pieces_of(tokens, size)
    whole = read(reading, pieces)
    assert whole == read(reading, [tokens])
    assert whole.content == text
    assert [call.name for call in whole.calls] == [call.name for call in calls]
    texts = [call.arguments for call in whole.calls]
    assert [exactly(json.loads(one)) for one in texts] == [exactly(one) for one in arguments]
    assert read_by_server(vocabulary, SPECS["deep"], pieces) == texts


@pytest.mark.parametrize(
    "number", ["1e400", "-0", "1.50", "1E+2", "0.1000000000000000055", "9" * 5000]
)
def test_numbers_keep_all_digits(vocabulary, reading, number):
    markers = vocabulary.call
    tokens = [markers.open, *spell(vocabulary, f"call:f{{a:{number}}}"), markers.close]
    assert read(reading, [tokens]).calls[0].arguments == f'{{"a": {number}}}'


def test_text_that_looks_like_a_call_is_text(vocabulary, reading):
    text = '<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|> <|channel>thought<channel|>'
    whole = read(reading, pieces_of(answer_tokens(vocabulary, text), 3))
    assert whole == WholeAnswer(content=text)


@pytest.mark.parametrize("size", [1, 100])
def test_blank_content_is_left_out_before_a_call_and_kept_without_one(vocabulary, reading, size):
    call = ToolCall("f", {})
    for text, content in (("\n ", ""), ("\n x ", "\n x ")):
        tokens = answer_tokens(vocabulary, text, call)
        assert read(reading, pieces_of(tokens, size)).content == content
    assert read(reading, pieces_of(answer_tokens(vocabulary, "\n "), size)).content == "\n "


@pytest.mark.parametrize("size", [1, 3, 100])
def test_reasoning_is_apart_or_in_the_content_with_its_markers(vocabulary, size):
    reading = reading_in(vocabulary, Reasoning.of(vocabulary))
    opens, closes = vocabulary.thought.open, vocabulary.thought.close
    thought = [*opens, *spell(vocabulary, "thought\nIs it {a:1}?\n"), *closes]
    tokens = [*thought, *answer_tokens(vocabulary, "Yes", ToolCall("f", {"a": "1"}))]
    pieces = pieces_of(tokens, size)
    apart = read(reading, pieces)
    assert (apart.reasoning, apart.content) == ("Is it {a:1}?", "Yes")
    within = read(reading, pieces, apart=False)
    assert within.reasoning == ""
    assert within.content == "<|channel>thought\nIs it {a:1}?\n<channel|>Yes"
    assert apart.calls == within.calls


def test_a_call_that_does_not_end_is_an_error(vocabulary, reading):
    tokens = answer_tokens(vocabulary, ToolCall("f", {"a": "x"}))
    for cut in range(1, len(tokens)):
        with pytest.raises(InvalidValueError, match="malformed"):
            read(reading, [tokens[:cut]])


@dataclass
class Function:
    name: str | None = None
    arguments: str | None = None
    id: str | None = None


@dataclass
class Call:
    index: int
    function: Function
    id: str | None = None
    type: str | None = None


@dataclass
class Message:
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Call] = field(default_factory=list)


RECORDED: list[tuple[bool, bool]] = []  # whether a call was read, and in a stream
IDS = count()
CLASSES = MessageClasses(
    delta=Message,
    delta_call=Call,
    delta_function=Function,
    function=Function,
    call_id=lambda: f"id-{next(IDS)}",
    record=lambda is_tool_called, is_streaming, request: RECORDED.append(
        (is_tool_called, is_streaming)
    ),
)


class Parser:
    """vLLM's parser of one answer."""

    reasoning_parser = object()

    def parse(self, model_output, request, enable_auto_tools=False, model_output_token_ids=()):
        return "vLLM", model_output, enable_auto_tools, model_output_token_ids

    def parse_delta(self, delta_text, delta_token_ids, request, prompt_token_ids=None, *, finished):
        return "vLLM", delta_text, delta_token_ids, prompt_token_ids, finished


class ReadingParser(Parser):
    parse = reads_calls(CLASSES, Parser.parse)
    parse_delta = reads_deltas(CLASSES, Parser.parse_delta)


def request_with(reading, **fields):
    tools = ToolsText("{}")
    tools.reading = reading
    return SimpleNamespace(vllm_xargs={TOOLS: tools, "other": 1}, include_reasoning=True, **fields)


@pytest.mark.parametrize("xargs", [None, {}, {"other": 1}, {TOOLS: "{}"}, {TOOLS: ToolsText("{}")}])
def test_answers_of_other_requests_are_read_by_vllm(xargs):
    request = SimpleNamespace(vllm_xargs=xargs)
    parser = ReadingParser()
    assert parser.parse("x", request, True, [1]) == ("vLLM", "x", True, [1])
    assert parser.parse("x", request, enable_auto_tools=True) == ("vLLM", "x", True, ())
    delta = parser.parse_delta("x", [1], request, [2], finished=True)
    assert delta == ("vLLM", "x", [1], [2], True)
    delta = parser.parse_delta("x", [1], request, prompt_token_ids=[2], finished=False)
    assert delta == ("vLLM", "x", [1], [2], False)


def test_whole_and_streamed_answers_become_vllm_s_messages(vocabulary, reading):
    calls = [ToolCall("f", {"a": "null", "b": None}), ToolCall("g", {})]
    tokens = [*answer_tokens(vocabulary, "Yes. ", *calls), STOP]
    request = request_with(reading)
    RECORDED.clear()
    reasoning, content, made = ReadingParser().parse("?", request, True, tokens)
    assert RECORDED == [(True, False)]
    assert (reasoning, content) == (None, "Yes.")
    assert [(call.name, json.loads(call.arguments)) for call in made] == [
        (call.name, call.arguments) for call in calls
    ]
    assert len({call.id for call in made}) == 2
    parser, text, streamed = ReadingParser(), "", {}
    for i, token in enumerate(tokens, 1):
        message = parser.parse_delta("?", [token], request, [2], finished=i == len(tokens))
        if message is None:
            continue
        text += message.content or ""
        for call in message.tool_calls:
            if call.function.name is not None:
                assert (call.type, call.index) == ("function", len(streamed))
                streamed[call.index] = [call.id, call.function.name, ""]
            else:
                assert call.id is None
            streamed[call.index][2] += call.function.arguments or ""
    assert RECORDED.count((True, True)) + RECORDED.count((False, True)) == len(tokens)
    assert RECORDED.count((True, True)) > 2
    assert text == "Yes. "
    assert [one[1:] for one in streamed.values()] == [[one.name, one.arguments] for one in made]
    assert len({one[0] for one in streamed.values()}) == 2
    (message,) = [ReadingParser().parse_delta("?", tokens, request, [2], finished=True)]
    assert [call.function.arguments for call in message.tool_calls] == [
        call.arguments for call in made
    ]


def test_reasoning_is_streamed_if_the_request_includes_it(vocabulary):
    reading = reading_in(vocabulary, Reasoning.of(vocabulary))
    opens, closes = vocabulary.thought.open, vocabulary.thought.close
    tokens = [*opens, *spell(vocabulary, "thought\nAha"), *closes, *spell(vocabulary, "Yes")]
    request = request_with(reading)
    message = ReadingParser().parse_delta("?", tokens, request, finished=True)
    assert message == Message(content="Yes", reasoning="Aha")
    request.include_reasoning = False
    message = ReadingParser().parse_delta("?", tokens, request, finished=True)
    assert message == Message(content="Yes")
    assert ReadingParser().parse_delta("?", [*opens], request, finished=False) is None


@pytest.mark.parametrize("size", [1, 99])
def test_a_call_whose_value_may_yet_become_json_is_passed_on_at_the_answers_end(
    chat, vocabulary, size
):
    schema = {"type": "object", "properties": {"a": {"type": ["string", "array"]}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    spec = Tools([tool], format="glm")
    text = '<tool_call>f<arg_key>a</arg_key><arg_value>["</arg_value></tool_call>'
    tokens = chat.tokenizer.encode(text, add_special_tokens=False)
    answer = read(reading_in(vocabulary, spec=spec), pieces_of([*tokens, STOP], size))
    assert [json.loads(call.arguments) for call in answer.calls] == [{"a": '["'}]
