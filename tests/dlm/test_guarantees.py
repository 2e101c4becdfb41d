"""The guarantees, under denoisers that try to break them. No oracle uses the engine's matcher."""

import json
import random
import re
from functools import partial

import jsonschema
import pytest
from decodings import engine_of_each
from doubles import Obsessed, Random, Scripted
from driven import fewest_tokens
from exhaustive import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from oracle import judge
from values import PROMPT, V

from dlm import (
    Choice,
    Committed,
    Diffusion,
    Failed,
    Finished,
    Grammar,
    JsonSchema,
    Regex,
    Request,
    RequestError,
)

engine_of = engine_of_each
LEAF = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "maxLength": 5},
        {"type": "integer"},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["mage", "warrior", "<turn|>", 7, None]},
        {"const": "ab cd"},
        {"type": "integer", "minimum": 3, "maximum": 40},
    ]
)
SCHEMA = st.recursive(
    LEAF,
    lambda inner: st.one_of(
        st.builds(lambda s: {"type": "array", "items": s, "maxItems": 3}, inner),
        st.builds(
            lambda p: {
                "type": "object",
                "properties": p,
                "required": list(p),
                "additionalProperties": False,
            },
            st.dictionaries(st.sampled_from(["a", "name", "invoice_id"]), inner, min_size=1),
        ),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
    ),
    max_leaves=4,
)
ADVERSARIES = st.one_of(
    st.builds(lambda seed: Random(V, seed), st.integers(0, 10_000)),
    st.builds(lambda seed: Random(V, seed, scale=60.0), st.integers(0, 10_000)),
    st.just(Obsessed(V, [1])),  # <eos>
    st.just(Obsessed(V, [106])),  # <turn|>
    st.just(Obsessed(V, [105])),  # <|turn>: no grammar allows it
    st.just(Obsessed(V, [0])),  # padding
    st.just(Obsessed(V, [1, 106, 50, 0, 100, 300])),
)
BREAKING = examples(40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@BREAKING
@given(model=ADVERSARIES, schema=SCHEMA, seed=st.integers(0, 99), max_tokens=st.integers(1, 70))
def test_all_emitted_text_is_a_prefix_of_a_valid_answer_whatever_the_model_wants(
    engine_of, model, schema, seed, max_tokens
):
    engine = engine_of(model)
    spec = JsonSchema(schema)
    engine.add(Request(token_ids=PROMPT, constraint=spec, seed=seed, max_tokens=max_tokens))
    oracle = judge(spec, engine.vocabulary)
    passes, tokens, text, result, refused = 0, [], "", None, None
    while engine.busy:
        events = engine.step()
        passes += bool(events)
        for event in events:
            if isinstance(event, Committed):
                tokens += event.tokens
                text += event.text
                raw = spelled(engine, event.tokens)
                assert oracle.accept_string(raw), f"{raw!r} after {tokens}"
            elif isinstance(event, Finished):
                result = event.result
            elif isinstance(event, Failed):
                refused = event.error

    if result is None:
        assert isinstance(refused, RequestError)
        assert max_tokens < fewest_tokens(engine, spec)
        return
    assert result.complete
    assert text == result.text
    assert result.stats.tokens == len(tokens) <= max_tokens
    bound = engine.config.sampler.max_steps + model.canvas_length.bit_length() + 1
    in_canvases = isinstance(engine.decoding, Diffusion)
    assert passes <= (result.stats.canvases * bound if in_canvases else len(tokens))
    jsonschema.validate(json.loads(result.text), schema)
    assert result.parsed == json.loads(result.text)
    assert tokens[-1] in engine.config.stops
    assert not set(result.token_ids) & engine.vocabulary.control


WORDS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12),
    min_size=1,
    max_size=5,
    unique=True,
)
TEXTS = st.one_of(
    st.tuples(st.just(Choice), WORDS),
    st.tuples(st.just(Choice), st.just(["mage", "mage of the north", "<turn|>", "warrior"])),
    st.tuples(
        st.just(Regex),
        st.sampled_from(
            ["[0-9]{4}-[0-9]{2}", "(red|green) [a-z]{1,5}", "a+b?", "x(yx)*", "[^a-z]{3}", "(é|ß)+"]
        ),
    ),
    st.tuples(
        st.just(Grammar),
        st.sampled_from(
            [
                'root ::= "(" root ")" | "x"',
                'root ::= term ("+" term)*\nterm ::= [0-9]+ | "<eos>"',
            ]
        ),
    ),
    st.tuples(st.just(partial(Grammar, syntax="lark")), st.just('start: "a" start "b" | "c"')),
)


@BREAKING
@given(model=ADVERSARIES, text=TEXTS, seed=st.integers(0, 99), max_tokens=st.integers(1, 60))
def test_texts_obey_their_regex_choice_or_grammar(engine_of, model, text, seed, max_tokens):
    engine = engine_of(model)
    kind, source = text
    spec = kind(source)
    request = Request(token_ids=PROMPT, constraint=spec, seed=seed, max_tokens=max_tokens)
    needed = fewest_tokens(engine, spec)
    if max_tokens < needed:
        with pytest.raises(RequestError, match=f"takes {needed} tokens"):
            engine.generate(request)
        return
    result = engine.generate(request)
    oracle = judge(spec, engine.vocabulary)
    assert result.complete
    assert oracle.accept_string(spelled(engine, result.token_ids))
    assert oracle.is_completed()
    assert result.parsed == result.text
    if isinstance(spec, Regex):
        assert re.fullmatch(spec.pattern, result.text, re.DOTALL)
    if isinstance(spec, Choice):
        assert result.text in spec.options


def spelled(engine, tokens) -> bytes:
    """Return the bytes of tokens: a canvas may end within a character."""
    return b"".join(engine.vocabulary.pieces[token] for token in tokens)


@pytest.mark.parametrize("stop", ["<eos>", "<turn|>", "<|tool_response>"])
def test_each_stop_token_after_the_closing_brace_ends_the_canvas(scripted, tokens_of, stop):
    """vLLM #45436, first reproduction: the matcher knew one stop token, the model wrote another."""
    engine = scripted(f'{{"a": 1}}{stop}{{"b": "left over"}}')
    result = engine.generate(
        Request(token_ids=PROMPT, constraint=JsonSchema({"type": "object"}), max_tokens=64)
    )
    assert (result.text, result.finish_reason) == ('{"a": 1}', "stop")
    assert result.token_ids == tokens_of('{"a": 1}')


def test_a_code_fence_cannot_begin_an_answer(scripted):
    """vLLM #45436, second reproduction: the canvas began with ```json, and was never masked."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    engine = scripted('```json\n{"a": 1}\n```<turn|>')
    free, bound = engine.generate(
        [Request(token_ids=PROMPT, constraint=spec) for spec in (None, JsonSchema(schema))]
    )
    assert free.text.startswith("```json")
    assert bound.text.startswith("{")
    jsonschema.validate(bound.parsed, schema)


def test_stop_tokens_are_impossible_before_the_grammar_is_satisfied(engine_of):
    spec = JsonSchema({"enum": ["mage", "healer"]})
    engine = engine_of(Obsessed(V, [1, 106, 50]))
    result = engine.generate(Request(token_ids=PROMPT, constraint=spec))
    assert result.finish_reason == "stop"
    assert result.parsed in ("mage", "healer")


def test_a_constraint_that_the_model_obeys_changes_nothing(scripted):
    text = '{"name": "Olga Lopez",\n  "items": ["desk", "lamp", "tent"], "total": 1.5}'
    engine = scripted(f"{text}<turn|>")
    free = Request(token_ids=PROMPT, max_tokens=99)
    bound = Request(token_ids=PROMPT, max_tokens=99, constraint=JsonSchema({"type": "object"}))
    results = engine.generate([free, bound])
    assert [r.text for r in results] == [text, text]
    assert results[0].token_ids == results[1].token_ids
    assert results[1].stats.denoiser_calls <= results[0].stats.denoiser_calls
    assert results[1].stats.repairs == 0


NAMES = ["name", "age", "city", "items", "unit price", "x"]
VALUES = [
    ({"type": "string"}, "Olga Lopez"),
    ({"type": "integer"}, 61),
    ({"type": ["string", "null"]}, None),
    ({"type": "array", "items": {"type": "number"}}, [1.5, 20]),
]
LAYOUTS = [{}, {"indent": 2}, {"separators": (",", ":")}]


def described_object(choose, order, depth=1):
    """Return a schema and an object that fits it, in an order that `order` allows."""
    names = choose.sample(NAMES, choose.randint(2, 5))
    required = [name for name in names if choose.random() < 0.5]
    schemas, value = {}, {}
    for name in names:
        inner = depth and choose.random() < 0.3
        part = described_object(choose, order, depth - 1) if inner else choose.choice(VALUES)
        schemas[name], value[name] = part
    shuffled = choose.sample(names, len(names))
    if order == "required":
        in_order = iter(required)
        shuffled = [next(in_order) if name in required else name for name in shuffled]
    schema = {"type": "object", "properties": schemas, "required": required}
    left_out = [name for name in shuffled if name not in required and choose.random() < 0.2]
    return schema, {name: value[name] for name in shuffled if name not in left_out}


@examples(60)
@given(
    seed=st.integers(0, 1 << 32),
    order=st.sampled_from(["required", "any"]),
    layout=st.sampled_from(LAYOUTS),
)
def test_a_schema_changes_nothing_in_an_answer_that_fits_it_whatever_the_order_of_its_keys(
    engine_of, tokens_of, seed, order, layout
):
    schema, value = described_object(random.Random(seed), order)
    text = json.dumps(value, **layout)
    free, bound = answers(engine_of, tokens_of, text, JsonSchema(schema, property_order=order))
    assert (free.text, bound.text) == (text, text)
    assert bound.token_ids == free.token_ids
    assert list(bound.parsed) == list(value)
    assert bound.stats.repairs == 0


@pytest.mark.parametrize("order", ["required", "any", "schema"])
def test_only_the_order_of_the_schema_loses_keys_that_the_model_writes_in_another(
    engine_of, tokens_of, order
):
    kinds = {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}}
    text = '{"city": "Oslo", "age": 61, "name": "Olga Lopez"}'
    spec = JsonSchema({"type": "object", "properties": kinds}, property_order=order)
    _, bound = answers(engine_of, tokens_of, text, spec)
    kept = bound.text == text
    assert kept == (order != "schema"), bound.text


def answers(engine_of, tokens_of, text, spec):
    """Return the results of a model that is sure of `text`: without a constraint, and with it."""
    script = [*tokens_of(text), 106]
    engine = engine_of(Scripted(V, len(PROMPT), script))
    return engine.generate(
        [Request(token_ids=PROMPT, max_tokens=200, constraint=c) for c in (None, spec)]
    )
