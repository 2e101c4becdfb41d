"""The contract, under denoisers that try to break it. The oracle is never the engine's matcher."""

import json
import re
from functools import partial

import jsonschema
import pytest
from decodings import engine_of_each
from doubles import Obsessed, Random, Scripted
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
def test_whatever_the_model_wants_the_output_is_a_prefix_of_a_valid_one(
    engine_of, model, schema, seed, max_tokens
):
    engine = engine_of(model)
    spec = JsonSchema(schema)
    engine.add(Request(token_ids=PROMPT, constraint=spec, seed=seed, max_tokens=max_tokens))
    oracle = judge(spec, engine.vocabulary)
    passes, said, text, result, refused = 0, [], "", None, None
    while engine.busy:
        events = engine.step()
        passes += bool(events)
        for event in events:
            if isinstance(event, Committed):
                said += event.tokens
                text += event.text
                raw = spelled(engine, event.tokens)
                assert oracle.accept_string(raw), f"{raw!r} after {said}"
            elif isinstance(event, Finished):
                result = event.result
            elif isinstance(event, Failed):
                refused = event.error

    if result is None:
        needed = int(re.search(r"takes (\d+) tokens", str(refused)).group(1))
        assert isinstance(refused, RequestError)
        assert max_tokens < needed
        return
    assert result.finish_reason == "stop"
    assert text == result.text
    assert result.stats.tokens == len(said) <= max_tokens
    bound = engine.config.max_steps + model.canvas_length.bit_length() + 1
    in_canvases = isinstance(engine.decoding, Diffusion)
    assert passes <= (result.stats.canvases * bound if in_canvases else len(said))
    jsonschema.validate(json.loads(result.text), schema)
    assert result.parsed == json.loads(result.text)
    assert said[-1] in engine.config.stops
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
    needed = shortest(engine, spec)
    if max_tokens < needed:
        with pytest.raises(RequestError, match=f"takes {needed} tokens"):
            engine.generate(request)
        return
    result = engine.generate(request)
    oracle = judge(spec, engine.vocabulary)
    assert result.finish_reason == "stop"
    assert oracle.accept_string(spelled(engine, result.token_ids))
    assert oracle.is_completed()
    assert result.parsed == result.text
    if isinstance(spec, Regex):
        assert re.fullmatch(spec.pattern, result.text, re.DOTALL)
    if isinstance(spec, Choice):
        assert result.text in spec.options


def shortest(engine, spec) -> int:
    """Tokens of the shortest answer, by the refusal of one token."""
    try:
        engine.generate(Request(token_ids=PROMPT, constraint=spec, max_tokens=1))
    except RequestError as error:
        return int(re.search(r"takes (\d+) tokens", str(error)).group(1))
    return 1


def spelled(engine, tokens) -> bytes:
    """Bytes, since a canvas may end within a character."""
    return b"".join(engine.vocabulary.pieces[token] for token in tokens)


@pytest.mark.parametrize("stop", ["<eos>", "<turn|>", "<|tool_response>"])
def test_each_stop_token_behind_the_closing_brace_ends_the_canvas(engine_of, tokens_of, stop):
    """vLLM #45436, first reproduction: the matcher knew one stop token, the model wrote another."""
    script = tokens_of(f'{{"a": 1}}{stop}') + tokens_of('{"b": "left over"}')
    engine = engine_of(Scripted(V, len(PROMPT), script))
    result = engine.generate(
        Request(token_ids=PROMPT, constraint=JsonSchema({"type": "object"}), max_tokens=64)
    )
    assert (result.text, result.finish_reason) == ('{"a": 1}', "stop")
    assert result.token_ids == tokens_of('{"a": 1}')


def test_a_code_fence_cannot_begin_the_answer(engine_of, tokens_of):
    """vLLM #45436, second reproduction: the canvas began with ```json, and was never masked."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    script = tokens_of('```json\n{"a": 1}\n```<turn|>')
    engine = engine_of(Scripted(V, len(PROMPT), script))
    free, bound = engine.generate(
        [
            Request(token_ids=PROMPT),
            Request(token_ids=PROMPT, constraint=JsonSchema(schema)),
        ]
    )
    assert free.text.startswith("```json")
    assert bound.text.startswith("{")
    jsonschema.validate(bound.parsed, schema)


def test_stop_tokens_are_impossible_before_the_grammar_is_satisfied(engine_of):
    """An answer that wants to end at once is still a whole answer."""
    engine = engine_of(Obsessed(V, [1, 106, 50]))
    result = engine.generate(
        Request(token_ids=PROMPT, constraint=JsonSchema({"enum": ["mage", "healer"]}))
    )
    assert (result.finish_reason, result.parsed in ("mage", "healer")) == ("stop", True)


def test_a_satisfied_constraint_changes_nothing(engine_of, tokens_of):
    text = '{"name": "Olga Lopez",\n  "items": ["desk", "lamp", "tent"], "total": 1.5}'
    engine = engine_of(Scripted(V, len(PROMPT), tokens_of(text + "<turn|>")))
    free = Request(token_ids=PROMPT, max_tokens=99)
    bound = Request(token_ids=PROMPT, max_tokens=99, constraint=JsonSchema({"type": "object"}))
    results = engine.generate([free, bound])
    assert [r.text for r in results] == [text, text]
    assert results[0].token_ids == results[1].token_ids
    assert results[1].stats.denoiser_calls <= results[0].stats.denoiser_calls
    assert results[1].stats.repairs == 0
