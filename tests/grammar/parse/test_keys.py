"""Keys of objects: none occurs twice, and open objects have them in any order."""

import gc
import json
import random
import tracemalloc

import pytest
import torch
from answers import canvas_answer, matcher_answer, needed_tokens
from exhaustive import by_default, examples
from hypothesis import given
from hypothesis import strategies as st
from scores import scores_of

import dlm.grammar.parse.keys as keys_module
from dlm.grammar import Fixed, Frontier, JsonObject, JsonSchema, Matcher
from dlm.grammar.parse import Keys
from dlm.grammar.vocabulary import QuotedTokens

L = 24
VALUES = st.recursive(
    st.sampled_from([1, "a", '{"', "\\", None]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", 'q"', "\\", "é", ""]), inner, max_size=3)
    ),
    max_leaves=8,
)


def twice(text: str) -> bool:
    """Whether an object of the JSON `text` has a key twice."""
    found = []

    def pairs(items):
        found.append(len({key for key, _ in items}) < len(items))
        return dict(items)

    json.loads(text, object_pairs_hook=pairs)
    return any(found)


@given(value=VALUES, key=st.sampled_from(["a", "b", 'q"', "\\", "é", ""]), ascii_=st.booleans())
def test_a_key_that_the_object_already_has_is_refused(value, key, ascii_):
    once = json.dumps({"x": value}, ensure_ascii=ascii_)
    assert Keys().after(once.encode()) is not None
    spelled = json.dumps(key, ensure_ascii=ascii_)
    double = f'{{{spelled}: {json.dumps(value)}, "y": [{{{spelled}: 1}}], {json.dumps(key)}: 0}}'
    assert twice(double)
    assert Keys().after(double.encode()) is None
    assert Keys().after(double.rsplit(",", 1)[0].encode()) is not None


PIECES = st.text('ab"{}[]:,\\\\u0061é 1', min_size=1, max_size=6).map(str.encode)


@given(value=VALUES, cut=st.integers(0, 60), pieces=st.lists(PIECES, max_size=40))
def test_all_tokens_that_end_a_repeated_key_are_found(value, cut, pieces):
    pieces += [b'a"', b'"a"', b'","a"', b'":1,"a"', b'"}, "a"', b'\\u0061"', b'"', b'""', b'q\\""']
    text = json.dumps({"a": value, "b": 1, "": [value], 'q"': value})[:cut]
    keys = Keys().after(text.encode())
    suspects = keys.suspects(QuotedTokens(pieces))
    for token, piece in enumerate(pieces):
        try:
            double = keys.after(piece) is None
        except ValueError:  # no grammar of JSON allows it
            continue
        assert token in suspects or not double, piece


@pytest.mark.parametrize("begun", ['{"x\\n1":1,"x\\n', '{"x\\n1":1,"\\u0078\\u000A'])
def test_a_key_with_an_escape_is_compared_with_the_keys_that_begin_likewise(begun):
    keys = Keys().after(begun.encode())
    assert keys is not None
    pieces = [b'1"', b'1":', b'2"', b'11"', b"1"]
    assert keys.suspects(QuotedTokens(pieces)) == {0, 1}
    assert [keys.after(piece) is None for piece in pieces] == [True, True, False, False, False]


def test_few_tokens_are_read_to_find_those_that_repeat_a_key():
    """Others may hold three quotes, escapes, or keys of no open object."""
    pieces = ['":"",', ' "\\""', '\\u0062"', '\\u0061"', 'a":', 'b","b"', '"a":', '","a"', '"b":']
    tokens = QuotedTokens([piece.encode() for piece in pieces])
    expected = {
        '{"a': [7],
        '{"a":1,"': [3, 4, 5, 6, 7],
        '{"a":1,"x': [6, 7],
        '{"b":1,"a': [5, 7, 8],
        '{"":[{"b': [],
    }
    for text, suspects in expected.items():
        keys = Keys().after(text.encode())
        assert keys is not None
        assert sorted(keys.suspects(tokens)) == suspects, text


@pytest.mark.parametrize("begun", ['["a","', '{"a":1,"'])
def test_each_escape_is_read_once_however_long_the_string(begun, monkeypatch):
    sizes, beginning = [], keys_module.beginning
    monkeypatch.setattr(
        keys_module, "beginning", lambda raw: sizes.append(len(raw)) or beginning(raw)
    )
    keys, pieces = Keys().after(begun.encode(), lambda place: True), [b"\\n", b"\\u00", b"6", b"1b"]
    for piece in pieces * 50:
        keys = keys and keys.after(piece)
        assert keys is not None
        assert not keys.escape or piece != b"1b"
        _ = keys.at_risk, keys.taken_continuations
    assert (keys.key or keys.text).endswith(b"\\nab" * 50)
    assert sum(sizes) < 30 * 50


@pytest.mark.parametrize(
    ("begun", "rests", "new"),
    [
        ('{"a":1,', ['"a":', '"b":'], True),
        ('{"a":1,', ['"a":', 'b":', ' "b":', '"b'], False),
        ('{"ab":1,"a', ['b":', 'c":'], True),
        ('{"ab":1,"a', ['b":', '\\u0062":', "c"], False),
        ('{"ab":1,"a\\', ['nb":'], False),
        ('{"a":', ['"b"'], False),
    ],
)
def test_a_rest_of_a_new_key_is_one_that_the_object_does_not_have(begun, rests, new):
    keys = Keys().after(begun.encode())
    assert keys is not None
    assert keys.has_new_key([rest.encode() for rest in rests]) == new


def test_texts_of_one_grammar_share_their_keys(compiler, vocabulary):
    compiled = compiler.compile(JsonObject())
    tokens = vocabulary.encode('{"ab": 1, "c": {"ab": "a\\u0062", "d')
    texts = [Matcher(compiled), Matcher(compiled)]
    for end, token in enumerate(tokens, 1):
        assert all(text.accept(token) for text in texts)
        assert texts[0].keys == Keys().after(vocabulary.text(tokens[:end]).encode())
        assert texts[0].keys is texts[1].keys or end == 1


@pytest.mark.parametrize(
    "text", ["{" + ", ".join(f'"{number}": 1' for number in range(700)), '{"' + "word " * 4000]
)
def test_kept_keys_take_bounded_memory(compiler, vocabulary, text):
    compiled = compiler.compile(JsonObject())
    tokens = vocabulary.encode(text)
    tracemalloc.start()
    try:
        assert Matcher(compiled).accept_all(tokens) == len(tokens)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 16 << 20
    assert kept // 2 < compiled.steps.nbytes < 2 * kept


NUMBERS = {"type": "object", "additionalProperties": {"type": "integer"}}
WANTED = ['"":0,', '"a": 1, ', '{"a": {"a": 1}, "a', '"b":true,"b"', '"', "ab", '"2024-01-01":1,']
WANTED += ['{"USD": 1, "USD": 2, "US', '"--":1,"--":1', '"ab":1,"ab"', '","']
SPECS = {
    "object": JsonObject(),
    "open": JsonSchema({"properties": {"a": True}, "additionalProperties": {"type": "integer"}}),
    "patterns": JsonSchema(
        {"patternProperties": {"^[ab]+$": {"type": "boolean"}}, "additionalProperties": False}
    ),
    "three": JsonSchema({"additionalProperties": {"type": "integer"}, "minProperties": 3}),
    "two": JsonSchema({"additionalProperties": {"type": "null"}, "minProperties": 1}),
    "dates": JsonSchema(NUMBERS | {"propertyNames": {"format": "date"}}),
    "codes": JsonSchema(NUMBERS | {"propertyNames": {"pattern": "^[A-Z]{3}$"}}),
    "short": JsonSchema(NUMBERS | {"propertyNames": {"maxLength": 2}, "minProperties": 2}),
    "lines": JsonSchema(NUMBERS | {"propertyNames": {"pattern": "^-+$"}, "minProperties": 2}),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@examples(20)
@given(text=st.sampled_from(WANTED), budget=st.integers(24, 96))
def test_the_keys_of_a_model_that_repeats_itself_differ(compiler, vocabulary, spec, text, budget):
    def canvases():
        begun, wanted = vocabulary.encode("{"), (vocabulary.encode(text) * L)[:L]
        for canvas in range(budget):
            logits = torch.zeros(L, len(vocabulary))
            logits[range(L), wanted] = 50.0
            yield scores_of(logits, wanted if canvas else (begun + wanted)[:L])

    tokens = canvas_answer(Frontier(compiler.compile(spec), budget), canvases())
    assert len(tokens) <= budget
    assert not twice(vocabulary.text(tokens))
    assert spec.value(vocabulary.text(tokens)) is not None


TWENTY = {"patternProperties": {"^[a-t]$": {"const": 1}}, "additionalProperties": False}
INTEGERS = {name: {"type": "integer"} for name in ("a", "ab", "abc", "b", "id")}
INNER = {"o": {"properties": INTEGERS, "required": ["a"]}}


@pytest.mark.parametrize(
    "schema",
    [
        NUMBERS | {"propertyNames": {"pattern": "^[A-Z]{1,2}$"}, "minProperties": 3},
        NUMBERS | {"propertyNames": {"format": "date"}},
        TWENTY,
        {"type": "array", "items": {"type": "object", "minProperties": 2} | TWENTY},
        {"properties": INTEGERS},
        {"properties": INTEGERS, "required": ["ab", "id"]},
        {"properties": INTEGERS, "required": ["b"], "additionalProperties": {"type": "null"}},
        {"properties": dict(list(INTEGERS.items())[:3]), "additionalProperties": False},
        {"properties": INNER, "required": ["o"]},
        {"properties": INTEGERS, "required": [*INTEGERS]},
    ],
)
@pytest.mark.parametrize("greedy", [True, False], ids=["long", "short"])
@pytest.mark.parametrize(("seed", "budget"), by_default([(0, 48), (0, 200), (1, 200), (2, 200)]))
def test_any_allowed_tokens_make_an_object_of_different_keys(
    compiler, vocabulary, schema, greedy, seed, budget
):
    """Also if the model closes no object as long as it may go on."""
    spec = JsonSchema({"type": "object"} | schema, additional_properties="schema")
    choose, pieces = random.Random(seed), vocabulary.pieces

    def any_token(tokens):
        open_ = [t for t in tokens if t not in vocabulary.stops and b"}" not in pieces[t]]
        return choose.choice(open_ if greedy and open_ else tokens)

    text = vocabulary.text(matcher_answer(Matcher(compiler.compile(spec)), budget, any_token))
    assert not twice(text)
    spec.value(text)


def test_the_shortest_completion_of_an_open_object_has_its_required_keys(compiler, vocabulary):
    schema = {"type": "object", "properties": INTEGERS, "required": ["ab", "id"]}
    spec = JsonSchema(schema, additional_properties="schema")
    matcher = Matcher(compiler.compile(spec))
    begun = vocabulary.encode('{"zz": 1, "id": 2, "b": 3, "a')
    assert matcher.accept_all(begun) == len(begun)
    completion = matcher.shortest_completion()
    assert completion is not None
    assert spec.value(vocabulary.text([*begun, *completion])).keys() >= {"ab", "id", "zz", "b"}


def test_masks_allow_no_token_that_ends_a_repeated_key(compiler, vocabulary):
    matcher = Matcher(compiler.compile(JsonObject()))
    tokens = vocabulary.encode('{"ab": 1, "ab')
    assert matcher.accept_all(tokens) == len(tokens)
    words = matcher.allowed()
    for token, piece in enumerate(vocabulary.pieces):
        allowed = bool(words[token >> 5] >> (token & 31) & 1)
        if piece and allowed:
            assert not piece.startswith(b'"')
            assert matcher.accept(token)
            matcher.rollback(1)
    completion = matcher.shortest_completion()
    assert completion is not None
    assert not twice(vocabulary.text([*tokens, *completion]))


ALIKE = {name: {"type": "string"} for name in ("k", "kk", "kkName", "kkNameOf", "kkNameOfAll")}


@examples(60)
@given(seed=st.integers(0, 2**32), more=st.integers(0, 30))
def test_keys_with_equal_beginnings_fit_the_least_budget(compiler, vocabulary, seed, more):
    """A key that is the beginning of another one is no repetition of it."""
    spec = JsonSchema({"type": "object", "properties": ALIKE, "required": [*ALIKE][1:]})
    compiled = compiler.compile(spec)
    budget, rng = needed_tokens(compiled) + more, torch.Generator().manual_seed(seed)
    frontier, tokens = Frontier(compiled, budget), []
    while not tokens or tokens[-1] not in vocabulary.stops:
        pinned: tuple[int, ...] = ()
        for _ in range(4):  # each pass pins what the last one repaired
            logits = 4 * torch.randn(L, len(vocabulary), generator=rng)
            guidance = frontier.guide(scores_of(logits), Fixed(pinned=pinned, last=True))
            repaired = (guidance.suspect or 0) if guidance.repaired else 0
            pinned = tuple(guidance.guess[: max(len(pinned), repaired)])
        frontier.commit(guidance.guess[: guidance.stop + 1])
        tokens += guidance.guess[: guidance.stop + 1]
    assert len(tokens) <= budget
    assert spec.value(vocabulary.text(tokens)) is not None
