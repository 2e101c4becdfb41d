"""Answers that a check refuses after their grammar: the token to replace, and the new try."""

import json

import jsonschema
import pytest
from decodings import engine_of_each
from doubles import Obsessed, Random
from exhaustive import by_default, examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from specs import checked
from values import PROMPT, V

from dlm import DecodeConfig, DlmError, Failed, Finished, JsonSchema, Request
from dlm.replacement import alike_in, outside_strings, token_to_replace, untried
from dlm.samplers import EntropyBound

engine_of = engine_of_each
FEW = examples(8, suppress_health_check=[HealthCheck.too_slow])


def bytewise(text):
    return [bytes([byte]) for byte in text.encode()]


def replaced_in(text, path):
    """Return the text before the token to replace, and that token, if each byte is a token."""
    at = token_to_replace(bytewise(text), path, None)
    return text.encode()[:at].decode("utf-8", "ignore"), text.encode()[at : at + 1]


@pytest.mark.parametrize(
    ("text", "path", "before", "at"),
    [
        ("17", [], "1", b"7"),
        ('{"a": 17, "b": 2}', ["a"], '{"a": 1', b"7"),
        ('{"a": 17, "b": 2}', ["b"], '{"a": 17, "b": ', b"2"),
        ('{ "a" : [ 1 , { "b" : 25 } ] }', ["a", 1, "b"], '{ "a" : [ 1 , { "b" : 2', b"5"),
        ("[[1, 2], [3, 45]]", [1, 1], "[[1, 2], [3, 4", b"5"),
        ("[[1, 2], [3, 45]]", [1], "[[1, 2], [3, 45", b"]"),
        ('["a]", "b\\"]", 31]', [2], '["a]", "b\\"]", 3', b"1"),
        ('{"é\\"}": {"日": 12}}', ['é"}', "日"], '{"é\\"}": {"日": 1', b"2"),
        ('{"\\u00e9": 12}', ["é"], '{"\\u00e9": 1', b"2"),
        (' \n["日本", "x"] ', [0], ' \n["日本', b'"'),
        ('{"a": {"a": 12}, "b": 3}', ["a", "a"], '{"a": {"a": 1', b"2"),
        ("[true, null]", [1], "[true, nul", b"l"),
    ],
)
def test_the_token_to_replace_is_the_last_one_of_the_wrong_part(text, path, before, at):
    json.loads(text)
    assert replaced_in(text, path) == (before, at)


def test_a_token_that_reaches_over_the_end_of_the_wrong_part_is_replaced():
    pieces = [b'{"a":', b' [1', b'2, ', b'3]', b'}']  # fmt: skip
    assert token_to_replace(pieces, ["a", 0], None) == 2
    assert token_to_replace(pieces, ["a", 1], None) == 3
    assert token_to_replace([b'{"a": [12, 3]}'], ["a", 0], None) == 0


def test_in_an_array_each_try_replaces_the_token_before():
    text = '{"a": [1, 2, 2]}'
    turned, seen = None, []
    for _ in range(12):
        turned = token_to_replace(bytewise(text), ["a"], turned)
        seen.append(turned)
    assert seen[0] == text.index("]")
    assert seen[:9] == list(range(text.index("]"), text.index("[") - 1, -1))
    assert set(seen[9:]) == {text.index("[")}


def test_each_try_replaces_the_last_token_of_a_number():
    text = "[17, 25]"
    assert [token_to_replace(bytewise(text), [0], turned) for turned in (None, 2, 5)] == [2, 2, 2]


@pytest.mark.parametrize("text", ["no JSON", "<call>[7, 7]</call>", '{"a": '])
def test_in_a_text_that_is_no_json_tries_go_back_from_its_end(text):
    last = max(0, len(text) - 1)
    assert token_to_replace(bytewise(text), [], None) == last
    assert token_to_replace(bytewise(text), ["a", 0], 2) == min(last, 1)


def test_a_token_that_was_already_refused_there_is_not_replaced_again():
    """If the grammar allows no other token, it would come back: another one has to be replaced."""
    tokens = [5, 6, 7, 8, 1]  # 1 is the stop
    assert untried(tokens, 2, 0, {}) == 2
    assert untried(tokens, 2, 0, {(5, 6): {9}, (5,): {7}}) == 2
    assert untried(tokens, 2, 0, {(5, 6): {7}}) == 1
    assert untried(tokens, 2, 2, {(5, 6): {7}}) == 3  # none before, so after
    assert untried(tokens, 2, 0, {(5, 6): {7}, (5,): {6}, (): {5}}) == 3
    every = {tuple(tokens[:i]): {tokens[i]} for i in range(4)}
    assert untried(tokens, 2, 0, every) == 2


def test_a_token_whose_change_makes_no_difference_is_not_replaced():
    tokens = [5, 6, 7, 8, 1]
    assert untried(tokens, 2, 0, {}, idle={2}) == 1
    assert untried(tokens, 2, 0, {(5,): {6}}, idle={2}) == 0
    assert untried(tokens, 2, 2, {}, idle={2}) == 3
    assert untried(tokens, 2, 0, {}, idle={0, 1, 2, 3}) == 2


@pytest.mark.parametrize(
    ("pieces", "outside"),
    [
        ([b"[", b'"a', b" ", b'b"', b" ", b"]"], [True, True, False, False, True, True]),
        ([b'"', b"\\", b'"', b" ", b'"', b"\n"], [True, False, False, False, False, True]),
        ([b'"\\', b'\\"', b" "], [True, False, True]),
        ([b"<x>", b" ", b"[1]"], [False, False, False]),
        ([b'"\xff', b'"'], [False, False]),
    ],
)
def test_it_is_known_which_tokens_begin_outside_strings(pieces, outside):
    assert outside_strings(pieces) == outside


PIECES = [b"1", b" 1", b"1\n", b"11", b" ", b"\n\t", b"", b'"a', b' "a', b'"a ', b'"a"', b'"a" ']


@pytest.mark.parametrize(
    ("piece", "outside", "alike"),
    [
        (b"1", False, [b"1"]),
        (b"1", True, [b"1", b" 1", b"1\n", b" ", b"\n\t"]),
        (b" 1", True, [b"1", b" 1", b"1\n", b" ", b"\n\t"]),
        (b" ", True, [b" ", b"\n\t"]),
        (b'"a', True, [b'"a', b' "a', b" ", b"\n\t"]),
        (b'"a"', True, [b'"a"', b'"a" ', b" ", b"\n\t"]),
        (b" ", False, [b" "]),
    ],
)
def test_tokens_that_differ_in_insignificant_white_space_are_alike(piece, outside, alike):
    assert alike_in(PIECES, piece, outside) == {PIECES.index(one) for one in alike}


JSON = st.recursive(
    st.one_of(st.integers(), st.booleans(), st.none(), st.text(max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3),
        st.dictionaries(st.text(max_size=4), inner, min_size=1, max_size=3),
    ),
    max_leaves=8,
)


@examples(30)
@given(value=JSON, data=st.data(), ascii_=st.booleans(), indent=st.sampled_from([None, 2]))
def test_the_token_to_replace_lies_in_the_wrong_part_of_any_json(value, data, ascii_, indent):
    """The text before it is unchanged, and it is the last byte of the wrong part."""
    path, part = [], value
    while isinstance(part, dict | list) and data.draw(st.booleans()):
        keys = list(part) if isinstance(part, dict) else range(len(part))
        path.append(data.draw(st.sampled_from(keys)))
        part = part[path[-1]]
    text = json.dumps(value, ensure_ascii=ascii_, indent=indent)
    at = token_to_replace(bytewise(text), path, None)
    raw = text.encode()
    spelled = {json.dumps(part, ensure_ascii=flag).encode()[-1:] for flag in (True, False)}
    assert raw[at : at + 1] in spelled
    changed = raw[:at].decode("utf-8", "ignore")
    assert text.startswith(changed)


WIDE = [
    {
        "type": "array",
        "items": {"enum": [1, 2, 3]},
        "minItems": 2,
        "maxItems": 4,
        "uniqueItems": True,
    },
    {"type": "integer", "minimum": 1, "maximum": 99, "multipleOf": 3},
    {"type": "integer", "minimum": 0, "maximum": 30, "not": {"multipleOf": 7}},
    {
        "oneOf": [
            {"type": "integer", "minimum": 0, "maximum": 50},
            {"type": "integer", "minimum": 40, "maximum": 99},
        ]
    },
    {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "multipleOf": 5, "minimum": 1, "maximum": 60},
            "s": {
                "type": "array",
                "items": {"enum": ["é", "b"]},
                "maxItems": 2,
                "uniqueItems": True,
            },
        },
        "required": ["n", "s"],
        "additionalProperties": False,
    },
]


def check_caches(engine):
    """Check that caches hold the prompt and the final tokens, up to the last canvas."""
    for slot, running in engine._scheduler.running.items():
        cached, final = engine._cache.tokens[slot], running.prompt + running.tokens
        assert cached == final[: len(cached)]
        assert len(cached) >= len(final) - engine.model.canvas_length
    for slot in engine._scheduler._free:
        assert engine._cache.tokens[slot] == []


def ends_of(engine, requests):
    """Return the end of each request; check the caches after every step."""
    numbers = [engine.add(request) for request in requests]
    ends = {}
    while engine.busy:
        for event in engine.step():
            if isinstance(event, Finished | Failed):
                ends[event.request] = event
        check_caches(engine)
    return [ends[number] for number in numbers]


@FEW
@given(schema=st.sampled_from(WIDE), model=st.integers(0, 999), scale=st.sampled_from([3.0, 60.0]))
@pytest.mark.parametrize("canvas_length", by_default([4, 16]))
def test_an_answer_meets_keywords_that_no_grammar_enforces_or_is_refused(
    engine_of, schema, model, scale, canvas_length
):
    engine = engine_of(Random(V, model, scale, canvas_length=canvas_length))
    request = Request(token_ids=PROMPT, constraint=checked(schema), max_tokens=60)
    (end,) = ends_of(engine, [request])
    if isinstance(end, Failed):
        assert "the result is refused: " in str(end.error)
        return
    jsonschema.validate(json.loads(end.result.text), schema)
    assert end.result.complete
    assert end.result.stats.tokens == len(end.result.token_ids) + 1 <= 60


@pytest.mark.parametrize(
    ("text", "schema", "tries"),
    [
        ("[1, 1]", WIDE[0], 8),
        ("[ 1 ,\n1 ]", WIDE[0], 8),  # no try is wasted on white space
        ("[1\t, 1]", WIDE[0], 8),
        ("25", WIDE[1], 60),
        ("7", WIDE[2], 60),  # 7.0 and 7.00 are as wrong as 7
        ("45", WIDE[3], 60),
    ],
)
@pytest.mark.parametrize("canvas_length", by_default([3, 16]))
def test_a_model_that_repeats_a_wrong_answer_is_corrected(
    scripted, text, schema, tries, canvas_length
):
    config = DecodeConfig(
        sampler=EntropyBound(max_steps=6, confidence=0.02), patience=3, refusals=tries
    )
    engine = scripted(f"{text}<turn|>", canvas_length, config=config)
    request = Request(token_ids=PROMPT, constraint=checked(schema), max_tokens=60)
    (end,) = ends_of(engine, [request])
    assert isinstance(end, Finished), end
    jsonschema.validate(end.result.parsed, schema)
    assert 0 < end.result.stats.rollbacks <= tries


def test_an_answer_that_is_never_right_is_refused_after_the_configured_tries(engine_of):
    engine = engine_of(Obsessed(V, [383]))
    never = {"type": "array", "items": {"const": 7}, "minItems": 2, "uniqueItems": True}
    number = engine.add(Request(token_ids=PROMPT, constraint=checked(never), max_tokens=16))
    tries, last = 0, None
    while engine.busy:
        tries = max([tries, *(s.refusals for s in engine._scheduler.running.values())])
        for event in engine.step():
            last = event
    assert isinstance(last, Failed)
    assert last.request == number
    assert tries == engine.config.refusals


def test_reasoning_stays_if_the_answer_is_refused(scripted):
    text = "<|channel>thought\nhm [7, 7]<channel|>[7, 7]<turn|>"
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "uniqueItems": True}
    spec = checked(schema)
    for canvas_length in (3, 32):
        engine = scripted(text, canvas_length)
        request = Request(token_ids=PROMPT, constraint=spec, thinking=True, max_tokens=40)
        (end,) = ends_of(engine, [request])
        assert end.result.reasoning == "hm [7, 7]"
        jsonschema.validate(end.result.parsed, schema)


def outcome(end):
    """Return the error of a request, or its tokens."""
    return str(end.error) if isinstance(end, Failed) else end.result.token_ids


def test_a_refused_answer_changes_no_other_request(scripted, tokens_of):
    bad = Request(token_ids=PROMPT, constraint=checked(WIDE[0]), seed=1, max_tokens=24)
    good = Request(token_ids=PROMPT, constraint=JsonSchema({"type": "array"}), seed=2)

    def engine():
        return scripted("[2, 2]<turn|>", canvas_length=3)

    (alone,) = ends_of(engine(), [good])
    refused, beside = ends_of(engine(), [bad, good])
    (by_itself,) = ends_of(engine(), [bad])
    assert beside.result.token_ids == alone.result.token_ids == tokens_of("[2, 2]")
    assert beside.result.stats.denoiser_calls == alone.result.stats.denoiser_calls
    assert outcome(refused) == outcome(by_itself)


def test_further_tries_can_be_turned_off(scripted):
    engine = scripted("[2, 2]<turn|>", config=DecodeConfig(refusals=0))
    with pytest.raises(DlmError, match="the result is refused"):
        engine.generate(Request(token_ids=PROMPT, constraint=checked(WIDE[0])))
