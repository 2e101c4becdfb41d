"""Parsing calls from tokens: whole answers, and answers that arrive in pieces."""

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_calls import answer_tokens, call_tokens, spell
from toys import toy_vocabulary

from dlm.grammar import Answer, InvalidValueError, ToolCall, Tools
from dlm.grammar.calls import GemmaReader
from dlm.grammar.schema import is_bare

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
CHARACTERS = st.sampled_from('ab :,{}[]-1.e"@/ \n') | st.characters(exclude_categories=["Cs"])
KEYS = st.text(CHARACTERS, max_size=8).filter(is_bare)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS | st.sampled_from(['<|"|>', "a,b:{}[]", "}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def read_calls(tokens, vocabulary):
    reader = GemmaReader(vocabulary)
    reader.feed(tokens)
    return reader.answer()


@given(st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True), st.dictionaries(KEYS, VALUES))
def test_a_written_call_is_parsed_back(vocabulary, name, arguments):
    tokens = call_tokens(vocabulary, name, arguments)
    assert read_calls(tokens, vocabulary) == Answer(None, (ToolCall(name, arguments),))


@pytest.mark.parametrize(
    "name",
    [
        *("@timestamp", "first name", "filter[x]", "a/b", "xml:lang", "😀", "城市", "", ":", "a:"),
        *("a,b", "a:1", "a:true", "a}", 'say "hi"', "a:b:c", "x:-", "x:01,y", "a\nb", '<|"|>'),
        *("null", "-1"),
    ],
)
@pytest.mark.parametrize("value", ["", "b:1,c", -1.5, None, True, {}, [], {"": 1}, [":"]])
def test_an_unambiguous_name_is_parsed_back(vocabulary, name, value):
    assert is_bare(name)
    for arguments in ({name: value}, {"a": 1, name: value, "z": ""}, {"o": {name: {name: value}}}):
        tokens = call_tokens(vocabulary, "f", arguments)
        assert read_calls(tokens, vocabulary).tool_calls == (ToolCall("f", arguments),)


@pytest.mark.parametrize(
    "name", ["}", "}a", "a:{b", "a:[", "a:1,b", "a:null}", "x:a:-1.5e3,", "a:" + "7" * 63]
)
def test_a_name_that_could_be_parsed_otherwise_is_not_bare(vocabulary, name):
    assert not is_bare(name)
    tokens = call_tokens(vocabulary, "f", {name: 1})
    try:
        (call,) = read_calls(tokens, vocabulary).tool_calls
    except InvalidValueError:
        return
    assert call.arguments != {name: 1}


def test_many_names_are_parsed_in_linear_time(vocabulary):
    """The search for a name stops at its end."""
    arguments = {f"n{i}": i for i in range(600)}
    (call,) = read_calls(call_tokens(vocabulary, "f", arguments), vocabulary).tool_calls
    assert call.arguments == arguments


def native(vocabulary, text):
    """Return the tokens of a text in which < and > open and close a call, ` quotes, ~ stops."""
    call = vocabulary.call
    markers = {"<": call.open, ">": call.close, "`": call.quote, "~": vocabulary.stops[1]}
    tokens = []
    for part in re.split("([<>`~])", text):
        tokens += [markers[part]] if part in markers else spell(vocabulary, part)
    return tokens


def test_text_and_calls_are_separated(vocabulary):
    answer = read_calls(
        native(vocabulary, "Two of them. <call:a{x:1}><call:b-c.d{}> Done."), vocabulary
    )
    assert answer.content == "Two of them.  Done."
    assert answer.tool_calls == (ToolCall("a", {"x": 1}), ToolCall("b-c.d", {}))


def test_an_answer_without_text_has_no_content(vocabulary):
    assert read_calls([], vocabulary) == Answer(None, ())
    assert read_calls([vocabulary.stops[0]], vocabulary) == Answer(None, ())


def test_text_that_looks_like_a_marker_is_text(vocabulary):
    text = '<|tool_call>call:f{a:<|"|>b<|"|>}<tool_call|>'
    assert read_calls(spell(vocabulary, text), vocabulary) == Answer(text, ())
    tokens = call_tokens(vocabulary, "f", {"a": text})
    assert read_calls(tokens, vocabulary).tool_calls == (ToolCall("f", {"a": text}),)


def test_broken_characters_are_replaced_in_text_and_refused_in_calls(vocabulary):
    lone = next(t for t, piece in enumerate(vocabulary.pieces) if piece == b"\xc3")
    assert read_calls([lone], vocabulary).content == "\ufffd"
    tokens = call_tokens(vocabulary, "f", {"a": "b"})
    at = tokens.index(vocabulary.call.quote)
    with pytest.raises(InvalidValueError, match="UTF-8"):
        read_calls([*tokens[: at + 1], lone, *tokens[at + 1 :]], vocabulary)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<", "'call:' is missing"),
        ("<call:>", "a tool's name is missing"),
        ("<call:f>", "'{' is missing"),
        ("<call:f{", "a key is missing"),
        ("<call:f{}", "closing marker is missing"),
        ("<call:f{} >", "closing marker is missing"),
        ("<call:f{a}>", "':' is missing"),
        ("<call:f{a:}>", "a value is missing"),
        ("<call:f{a:1,}>", "a key is missing"),
        ("<call:f{a:`1` b:2}>", "',' is missing"),
        ("<call:f{a:[1}>", "',' is missing"),
        ("<call:f{a:[1,]}>", "a value is missing"),
        ("<call:f{a:`b}>", "a string does not end"),
        ("<call:f{a:`b~`}>", "a string does not end"),
        ('<call:f{a:"b"}>', "a value is missing"),
        ("<call:f{a:01}>", "a value is missing"),
        ("<call:f{a:[01]}>", "a value is missing before '01'"),
        ("<call:f{a:[1}", "',' is missing before '}'"),
        ("<call:f{a:1,}b:2}>", "a key is missing"),
        ("<call:f{a:[`b`,`c", "a string does not end"),
        ("<call:f g{}>", "'{' is missing"),
        ("<call:f{a:1e999}>", "too large a number"),
        (f"<call:f{{a:{'9' * 5000}}}>", "too many digits"),
        (f"<call:f{{a:{'[' * 5000}{']' * 5000}}}>", "nested too deep"),
        ("<call:f{`a`:1}>", "a key is missing"),
        ("x>", "its beginning is missing"),
        ("x`y`", "its beginning is missing"),
        ("<call:f{}>>", "its beginning is missing"),
    ],
)
def test_a_malformed_call_is_refused_with_what_is_missing(vocabulary, text, problem):
    with pytest.raises(InvalidValueError, match=f"malformed before token .*{problem}"):
        read_calls(native(vocabulary, text), vocabulary)


def test_without_markers_an_answer_is_text(vocabulary):
    toy = toy_vocabulary([b"call:", b"f{}"])
    spec = Tools([{"type": "function", "function": {"name": "f"}}])
    assert spec.read([2, 3], toy) == Answer("call:f{}", ())


def test_a_call_in_openais_form_has_its_arguments_as_json():
    call = ToolCall("get_weather", {"city": "Zürich", "days": 2}).to_openai("call_1")
    assert call["id"] == "call_1"
    assert call["type"] == "function"
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Zürich", "days": 2}


CALLS = st.builds(
    ToolCall,
    st.sampled_from(["find", "set_alarm.v2", "a-b"]),
    st.dictionaries(KEYS | st.sampled_from(["xml:lang", "a:1", "t:tru", "n:-"]), VALUES),
)


def streamed(vocabulary, tokens, cuts=()):
    """Calls assembled from their pieces by a client, and the reader that got the cut `tokens`."""
    reader, calls, start = GemmaReader(vocabulary), [], 0
    for end in sorted({min(cut, len(tokens)) for cut in cuts} | {len(tokens)}):
        for delta in reader.feed(tokens[start:end]):
            if delta.name is not None:
                assert (delta.index, delta.arguments) == (len(calls), "")  # the name comes first
                calls.append([delta.name, ""])
            else:
                assert delta.index == len(calls) - 1
                calls[-1][1] += delta.arguments
        start = end
    return calls, reader


@given(
    parts=st.lists(CALLS | TEXTS.filter(bool), max_size=4),
    cuts=st.lists(st.integers(0, 80), max_size=6),
)
def test_calls_do_not_depend_on_how_the_tokens_are_cut(vocabulary, parts, cuts):
    tokens = answer_tokens(vocabulary, *parts)
    calls, reader = streamed(vocabulary, tokens, cuts)
    expected = [part for part in parts if isinstance(part, ToolCall)]
    assert calls == [[c.name, json.dumps(c.arguments, ensure_ascii=False)] for c in expected]
    content = "".join(part for part in parts if isinstance(part, str))
    assert reader.answer() == Answer(content or None, tuple(expected))


def test_arguments_are_emitted_as_they_arrive(vocabulary):
    tokens = call_tokens(vocabulary, "find", {"a": "one two", "b_1": [1, 2]})
    emitted = [
        "".join(arguments for _, arguments in streamed(vocabulary, tokens[:end])[0])
        for end in range(len(tokens))
    ]
    assert len(set(emitted)) > 6
    assert all(later.startswith(earlier) for earlier, later in pairwise(emitted))


@pytest.mark.parametrize("digits", [62, 63, 64, 65, 3000])
def test_a_long_number_is_emitted_before_its_end(vocabulary, digits):
    tokens = call_tokens(vocabulary, "find", {"a": int("7" * digits)})
    assert streamed(vocabulary, tokens)[0] == [["find", f'{{"a": {"7" * digits}}}']]
    begun = streamed(vocabulary, tokens[:-2])[0][0][1]
    assert ("7" * min(digits, 63) in begun) == (digits >= 63)


def test_a_reader_of_calls_needs_a_vocabulary_with_their_markers():
    with pytest.raises(ValueError, match="no tokens of Gemma"):
        GemmaReader(toy_vocabulary([b"a"]))
