"""Calls after Mistral's control tokens: one by one, and in a list."""

import json

import pytest
from readers import misread
from recogniser import Recogniser
from written_calls import (
    ARGUMENTS,
    CALL,
    NOW,
    ODD,
    TOOLS,
    pieces_of,
)

from dlm.grammar import (
    Answer,
    InvalidValueError,
    ToolCall,
    Tools,
    Vocabulary,
)
from dlm.grammar.vocabulary import MistralListMarkers, MistralMarkers


def with_markers(vocabulary, call):
    """Return the vocabulary of a model whose calls have these markers."""
    return Vocabulary(
        vocabulary.pieces,
        control=vocabulary.control,
        stops=vocabulary.stops,
        pad=vocabulary.pad,
        thought=None,
        encode=vocabulary.encode,
        call=call,
    )


def test_calls_after_mistrals_control_tokens_are_accepted_and_parsed(vocabulary):
    control = sorted(vocabulary.control - {*vocabulary.stops, vocabulary.pad})[-2:]
    opened, separated = control
    marked = with_markers(vocabulary, MistralMarkers(opened, separated))
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


def listed(*calls, end="]"):
    """Return calls as Mistral's earlier models write them, after their control token."""
    objects = [
        json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
        for call in calls
    ]
    return f"[{', '.join(objects)}{end}"


@pytest.fixture(scope="module")
def marked(vocabulary):
    """The vocabulary of a model that lists its calls."""
    opened = max(vocabulary.control - {*vocabulary.stops, vocabulary.pad})
    return with_markers(vocabulary, MistralListMarkers(opened))


def test_calls_in_mistrals_list_are_accepted(marked):
    assert marked.calls == "mistral_list"

    def reader(**options):
        rules = Tools(TOOLS, format="mistral_list", **options).rules(marked.call)
        return Recogniser(rules, {marked.call.open: "!"})

    one, two = listed(NOW), listed(CALL, NOW)
    taken = ["Hm.", f"!{one}", f"! {two}", f"Hm.! {two}", f"! [ {one[1:-1]} ]"]
    refused = ["!", "![]", f"!{one[:-1]}", f"!{one} Hm.", f"!{one}!{one}", f"!{one[:-1]},]"]
    refused.append(f"!{listed(ToolCall('search-web', {'limit': 3}))}")
    assert misread(reader().accepts, taken, refused) == []
    assert misread(reader(choice="required").accepts, taken[1:3], [*refused, "Hm."]) == []
    assert misread(reader(parallel=False).accepts, [f"!{one}"], [f"!{two}"]) == []
    assert misread(reader(named="now").accepts, [f"!{one}"], [f"!{two}", f"!{listed(CALL)}"]) == []


@pytest.mark.parametrize("with_ids", [False, True])
def test_calls_in_mistrals_list_are_read_and_passed_on_as_they_arrive(marked, with_ids):
    text, spec = listed(ODD, NOW, CALL), Tools(TOOLS, format="mistral_list")
    if with_ids:  # as templates show calls of earlier turns
        text = text.replace("}, {", '}, "id": "call00000"}, {').replace("}}, ", "}, ")
        text = f'{text[:-2]}, "id": "call00001"}}]'
    tokens = [*marked.encode("Hm. "), marked.call.open]
    for body in (marked.encode(text), [marked.pieces.index(bytes([b])) for b in text.encode()]):
        calls, answer = pieces_of(spec, marked, [*tokens, *body])
        assert answer == Answer("Hm.", (ODD, NOW, CALL))
        assert [(name, json.loads("".join(pieces))) for name, pieces in calls] == [
            (call.name, call.arguments) for call in (ODD, NOW, CALL)
        ]
        assert len(calls[0][1]) > 5
        assert spec.read([*tokens, *body], marked) == answer


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not a list of objects"),
        ("[", "not a list of objects"),
        ("[]", "not a list of objects"),
        (listed(NOW, end=""), "a bracket at the end of the list is missing"),
        (listed(NOW, end=","), "not a list of objects"),
        (listed(NOW, end=", 3]"), "not a list of objects"),
        (listed(NOW)[1:], "not a list of objects"),
        ('[{"name": "now", "arguments": {"a": ', "arguments do not end"),
    ],
)
def test_a_list_of_calls_that_is_not_whole_is_malformed(marked, text, problem):
    with pytest.raises(InvalidValueError, match=f"malformed at character .*{problem}"):
        Tools(TOOLS, format="mistral_list").read([marked.call.open, *marked.encode(text)], marked)


def test_the_name_of_mistrals_control_token_is_text(marked):
    spec = Tools(TOOLS, format="mistral_list")
    assert spec.read(marked.encode(f"[TOOL_CALLS] {listed(NOW)}"), marked).tool_calls == ()
