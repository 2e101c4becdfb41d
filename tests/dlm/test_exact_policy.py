"""The engine under the exact policy: what it promises holds, whatever the model wants."""

import json
import math
import re

import jsonschema
import pytest
from doubles import Dreamer, Obsessed, Random, Scripted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from specs import checked
from values import PROMPT, V

from dlm import (
    Choice,
    DecodeConfig,
    DlmError,
    Finished,
    Grammar,
    JsonSchema,
    Policy,
    Regex,
    Request,
    RequestError,
)
from dlm.grammar.exact import construction

EXACT = DecodeConfig(max_steps=6, confidence=0.02, patience=3, policy="exact")
LONG = "a label that takes more than one canvas of sixteen tokens, so that it is committed in two"
FLAT = {
    "type": "object",
    "properties": {
        "color": {"enum": ["red", "dark red", "blue"]},
        "paid": {"type": "boolean"},
        "zip": {"type": "string", "maxLength": 5},
    },
    "required": ["color", "paid", "zip"],
    "additionalProperties": False,
}
TWICE = {
    "type": "array",
    "items": {"enum": [1, 2, 3]},
    "minItems": 2,
    "maxItems": 4,
    "uniqueItems": True,
}
SPECS = {
    "choice": Choice(["mage", "warrior", "healer", LONG]),
    "long": Choice([LONG, LONG + " or three"]),
    "regex": Regex("(?:ab|cd){2,30}"),
    "schema": JsonSchema(FLAT),
}
MODELS = {
    "random": lambda seed: Random(V, seed),
    "peaked": lambda seed: Random(V, seed, scale=60.0),
    "stop": lambda _: Obsessed(V, [1]),
    "pad": lambda _: Obsessed(V, [0]),
    "dreamer": lambda seed: Dreamer(V, seed),
}


def holds(spec, text: str) -> bool:
    """Judged by nothing of ours."""
    if isinstance(spec, Choice):
        return text in spec.options
    if isinstance(spec, Regex):
        return bool(re.fullmatch(spec.pattern, text))
    jsonschema.validate(json.loads(text), FLAT)
    return True


def request(spec, **more) -> Request:
    return Request(token_ids=PROMPT, constraint=spec, **{"max_tokens": 200} | more)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from([*SPECS]),
    model=st.sampled_from([*MODELS]),
    suspect=st.sampled_from(["none", "refused", "mass"]),
    seed=st.integers(0, 99),
    max_tokens=st.integers(1, 120),
)
def test_whatever_the_model_wants_the_answer_is_valid_and_ends_in_time(
    engine_of, name, model, suspect, seed, max_tokens
):
    config = DecodeConfig(max_steps=6, confidence=0.02, patience=3, policy="exact", suspect=suspect)
    engine = engine_of(MODELS[model](seed), config)
    try:
        result = engine.generate(request(SPECS[name], seed=seed, max_tokens=max_tokens))
    except RequestError as error:
        least = int(re.search(r"the shortest answer takes (\d+) tokens", str(error))[1])
        assert least > max_tokens
        return
    assert result.finish_reason == "stop"
    assert holds(SPECS[name], result.text)
    assert len(result.token_ids) < max_tokens
    stats = result.stats
    assert stats.denoiser_calls <= stats.canvases * (6 + 4 + 1)  # as `Canvas.settle` bounds it
    assert len(stats.log_z) == stats.denoiser_calls


def test_a_model_that_is_sure_of_an_allowed_text_gets_it_and_nothing_is_lost(engine_of, tokens_of):
    script = [*tokens_of(json.dumps({"color": "dark red", "paid": True, "zip": "8001"})), 106]
    engine = engine_of(Scripted(V, len(PROMPT), script), EXACT)
    result = engine.generate(request(JsonSchema(FLAT)))
    assert [*result.token_ids, 106] == script
    assert result.stats.repairs == 0
    assert result.stats.log_z == pytest.approx([0.0] * result.stats.denoiser_calls, abs=1e-3)


def test_log_z_is_the_models_probability_of_all_that_is_allowed(engine_of):
    """Of "no" and "yes", however they are spelled, and a stop, as hot as the first pass is."""
    engine = engine_of(Random(V, 3), DecodeConfig(policy="exact"))
    result = engine.generate(request(Choice(["no", "yes"]), seed=5))
    p = (Random(V, 3).wish([], None, None) / 0.8).double().softmax(-1)
    spelled = [s for word in ("no", "yes") for s in spellings(word, engine.vocabulary)]
    total = sum(
        float(p[range(len(text)), text].prod() * p[len(text), list(EXACT.stops)].sum())
        for text in spelled
    )
    assert result.stats.log_z[0] == pytest.approx(math.log(total), abs=1e-3)


def spellings(text: str, vocabulary) -> list[list[int]]:
    """All ways to write `text` in tokens."""
    if not text:
        return [[]]
    return [
        [token, *rest]
        for token, piece in enumerate(vocabulary.pieces)
        if piece and text.encode().startswith(piece)
        for rest in spellings(text[len(piece) :], vocabulary)
    ]


def test_what_runs_beside_a_request_does_not_show(engine_of):
    model = Dreamer(V, 1)
    requests = [request(spec, seed=i) for i, spec in enumerate([*SPECS.values()] * 2)]
    together = engine_of(model, EXACT).generate(requests)
    engine = engine_of(model, EXACT)
    alone = [engine.generate(one) for one in requests]
    assert [r.token_ids for r in together] == [r.token_ids for r in alone]
    assert [r.stats.log_z for r in together] == [r.stats.log_z for r in alone]


def test_nobody_waits_while_an_automaton_is_made(engine_of):
    """A grammar takes many steps to be made ready, in each of which the others go on."""
    runs, joins = request(None, seed=1), request(SPECS["schema"], seed=2)
    alone = [engine_of(Dreamer(V, 1), EXACT).generate(one).token_ids for one in (runs, joins)]
    engine = engine_of(Dreamer(V, 1), EXACT, policy=Policy(step_work=10))
    number, ends = engine.add(runs), {}
    while not engine._scheduler.running:
        engine.step()
    (sequence,) = engine._scheduler.running.values()
    passes, met = sequence.stats, []
    other = engine.add(joins)
    while engine.busy:
        before = passes.denoiser_calls
        for event in engine.step():
            if isinstance(event, Finished):
                ends[event.request] = event.result.token_ids
        waits = other not in {s.number for s in engine._scheduler.running.values()}
        met.append(waits and passes.denoiser_calls > before)
    assert [ends[number], ends[other]] == alone
    assert sum(met) >= 3


def test_an_answer_that_only_its_schema_refuses_is_tried_again(engine_of, tokens_of):
    script = [*tokens_of("[1, 1]"), 106]
    engine = engine_of(Scripted(V, len(PROMPT), script), EXACT)
    result = engine.generate(request(checked(TWICE)))
    assert len(result.parsed) == len(set(result.parsed)) >= 2
    assert result.stats.rollbacks > 0


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"constraint": Grammar('start: "(" start ")" | "x"', "lark")}, "over 900 units of work"),
        ({"constraint": JsonSchema({"type": "object"})}, "keys that a schema does not name"),
        ({"constraint": Choice(["a", "b"]), "thinking": True}, "the policy exact knows no"),
    ],
)
def test_what_it_cannot_serve_is_refused_with_the_reason_before_it_runs(
    engine_of, more, reason, monkeypatch
):
    monkeypatch.setattr(construction, "_MOST_WORK", 900)
    engine = engine_of(Random(V, 0), EXACT)
    with pytest.raises(RequestError, match=reason):
        engine.generate(Request(token_ids=PROMPT, **more))
    assert not engine.busy


def test_text_without_a_constraint_is_what_it_is_under_the_other_policy(engine_of):
    free = Request(token_ids=PROMPT, max_tokens=40)
    frontier = DecodeConfig(max_steps=6, confidence=0.02, patience=3)
    one, other = (engine_of(Dreamer(V, 1), config).generate(free) for config in (EXACT, frontier))
    assert one.token_ids == other.token_ids


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"policy": "viterbi"}, "policy is 'viterbi': it takes one of frontier, exact"),
        ({"policy": "exact", "suspect": "all"}, "suspect is 'all'"),
        ({"suspect": "mass"}, "it takes the policy exact"),
    ],
)
def test_a_policy_that_is_none_is_refused(more, reason):
    with pytest.raises(DlmError, match=reason):
        DecodeConfig(**more)
