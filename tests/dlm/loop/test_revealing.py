"""Masked canvases through the whole engine: positions are revealed in any order."""

import json
from itertools import pairwise

import jsonschema
import pytest
import torch
from driven import events_of, fewest_tokens, streamed
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from revealing import MASK, Revealing, canvases, check_passes, endless, garbage, out_of_order
from revealing import spiteful as spiteful_model
from specs import checked
from values import PERSON, PROMPT, V

from dlm import Choice, DecodeConfig, DlmError, Draft, JsonSchema, Policy, Regex, Request, Tools
from dlm.samplers import sampler_of
from dlm.samplers.reveal import Reveal

TOOL = {
    "type": "function",
    "function": {
        "name": "book",
        "parameters": {
            "type": "object",
            "properties": {"seats": {"type": "integer"}},
            "required": ["seats"],
            "additionalProperties": False,
        },
    },
}
SPECS = {
    "person": JsonSchema(PERSON),
    "lists": JsonSchema(
        {"type": "array", "items": {"type": "array", "items": {"enum": ["ab", 1]}}, "minItems": 2}
    ),
    "regex": Regex("(ab|cd){1,6}-[0-9]+"),
    "choice": Choice(["mage of the north", "日本"]),
    "tools": Tools([TOOL], choice="required"),
}
STOPS = (1, 106)
UNHURRIED = Policy(step_work=1 << 40)  # no pass is made again since a grammar took too long


def model_of(kind, seed, L):
    if kind == "spiteful":
        return spiteful_model(seed, L)
    if kind == "endless":
        return endless(200 + seed % 900, L)
    return garbage(seed, 1.0 if kind == "flat" else 12.0, L)


@pytest.fixture(scope="module")
def engine(engine_of):
    """Return the engine of a length and settings, with a model that wants something."""
    made = {}

    def build(wish, L, **settings):
        key = L, *settings.items()
        if key not in made:
            config = DecodeConfig(sampler=Reveal(mask=MASK, **settings), stops=STOPS, pad=0)
            made[key] = engine_of(Revealing(L), config, slots=2, policy=UNHURRIED)
        made[key].model.wants(wish)
        return made[key]

    yield build
    for each in made.values():
        each.close()


SETTINGS = {
    "joint": {},
    "prefix": {"order": "prefix"},
    "edits": {"threshold": 0.5, "edit_threshold": 0.0},
    "doubt": {"threshold": 0.5, "doubt": 0.5, "edit_threshold": 0.0},
}


@pytest.fixture(scope="module")
def least(engine):
    """The tokens of each spec's shortest answer."""
    made = engine(garbage(0, 1.0, 16), 16)
    return {name: fewest_tokens(made, spec) for name, spec in SPECS.items()}


@pytest.mark.parametrize("settings", SETTINGS)
@given(
    name=st.sampled_from(sorted(SPECS)),
    kind=st.sampled_from(["flat", "sure", "spiteful", "endless"]),
    L=st.sampled_from([4, 16, 32]),
    beyond=st.sampled_from([0, 1, 7, 30]),
    thinking=st.booleans(),
    seed=st.integers(0, 2**16),
)
@examples(20)
def test_whatever_the_model_wants_an_answer_is_valid_and_within_its_budget(
    engine, least, settings, name, kind, L, beyond, thinking, seed
):
    made = engine(model_of(kind, seed, L), L, **SETTINGS[settings])
    most = least[name] + beyond
    request = Request(
        token_ids=PROMPT,
        constraint=SPECS[name],
        max_tokens=most,
        seed=seed,
        thinking=thinking and name != "tools" and beyond == 30,
        thinking_budget=beyond // 3 if thinking and beyond == 30 else None,
    )
    result, events = streamed(made, request)
    assert result.complete
    written = [token for event in events for token in event.tokens]
    assert written[: len(result.token_ids)] == result.token_ids
    assert len(written) <= most
    assert MASK not in written
    spec = SPECS[name]
    if isinstance(spec, JsonSchema):
        jsonschema.validate(json.loads(result.text), spec.schema)
    elif isinstance(spec, Tools):
        assert [call.name for call in result.tool_calls] == ["book"]
    else:
        assert result.parsed == result.text
    edit_passes = 16 if "edit_threshold" in SETTINGS[settings] else None
    for passes in canvases(made.model.shown):
        check_passes(passes, L, edit_passes)
        assert set(passes[0].tokens) == {MASK}
        assert not (settings == "prefix" and out_of_order(passes))


@pytest.mark.parametrize("settings", SETTINGS)
@given(
    kind=st.sampled_from(["flat", "sure", "spiteful", "endless"]),
    L=st.sampled_from([4, 16, 32]),
    budget=st.integers(1, 70),
    thinking_budget=st.sampled_from([None, 0, 5, 20]),
    seed=st.integers(0, 2**16),
)
@examples(20)
def test_free_text_ends_within_its_budget_and_has_no_mask(
    engine, settings, kind, L, budget, thinking_budget, seed
):
    made = engine(model_of(kind, seed, L), L, **SETTINGS[settings])
    thinking = thinking_budget is not None
    request = Request(
        token_ids=PROMPT,
        max_tokens=budget,
        seed=seed,
        thinking=thinking,
        thinking_budget=thinking_budget,
    )
    result, events = streamed(made, request)
    assert MASK not in result.token_ids
    written = [token for event in events for token in event.tokens]
    assert written[: len(result.token_ids)] == result.token_ids
    assert len(written) <= budget
    assert "".join(event.text for event in events) == result.text
    assert result.reasoning_tokens <= (thinking_budget or 0) + 3 or not thinking
    for passes in canvases(made.model.shown):
        check_passes(passes, L, 16 if "edit_threshold" in SETTINGS[settings] else None)


def knows(text, L, unsure=()):
    """Return a model that knows a text, and is less sure at some of its positions."""

    def wish(before, canvas):
        return scores_of(text, len(before) - len(PROMPT), L, unsure)

    return wish


def scores_of(text, begin, L, unsure):
    logits = torch.zeros(L, V)
    for i in range(L):
        at = begin + i
        logits[i, text[at] if at < len(text) else 0] = 8.0 if at in unsure else 25.0
    return logits


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("order", ["joint", "prefix"])
def test_sure_positions_are_revealed_out_of_order_unless_the_order_is_prefix(
    engine, tokens_of, order, constrained
):
    text = [*tokens_of('{"name": "Olga", "age": 61}'), 106]
    unsure = [p for p in range(1, len(text)) if p % 3 == 0]
    made = engine(knows(text, 32, unsure), 32, order=order)
    spec = JsonSchema(PERSON) if constrained else None
    result, _ = streamed(made, Request(token_ids=PROMPT, constraint=spec, max_tokens=60))
    assert result.token_ids == text[:-1]
    (passes,) = canvases(made.model.shown)
    assert out_of_order(passes) == (order == "joint")


def test_streamed_tokens_are_never_taken_back(engine, tokens_of):
    text = [*tokens_of('{"name": "Olga", "age": 61}'), 106]
    made = engine(knows(text, 16, range(0, 40, 2)), 16)
    request = Request(token_ids=PROMPT, constraint=JsonSchema(PERSON), max_tokens=60)
    result, events = streamed(made, request)
    assert len(events) > 1  # before the canvas is complete
    assert [token for event in events for token in event.tokens][: len(text) - 1] == text[:-1]
    assert "".join(event.text for event in events) == result.text


def drafts_of(made, request):
    """Return the drafts of an answer, each with the canvas that its pass was shown."""
    made.add(request)
    drafts = [event for event in events_of(made) if isinstance(event, Draft)]
    return list(zip(drafts, made.model.shown, strict=True))


@pytest.mark.parametrize("settings", [*SETTINGS.values(), {"threshold": 1.0, "max_steps": 2}])
def test_a_draft_says_where_the_next_pass_sees_masks(engine, tokens_of, settings):
    text = [*tokens_of('{"name": "Olga", "age": 61}'), 106]
    hurried = "max_steps" in settings  # the loop pins, since the grammar refuses much
    wish = garbage(3, 12.0, 16) if hurried else knows(text, 16, range(0, 40, 3))
    made = engine(wish, 16, **settings)
    request = Request(token_ids=PROMPT, constraint=JsonSchema(PERSON), max_tokens=60)
    pairs = list(pairwise(drafts_of(made, request)))
    compared = [(a, shown) for (a, _), (b, shown) in pairs if b.step == a.step + 1]
    assert compared
    for draft, shown in compared:
        assert draft.masked == [token == MASK for token in shown.tokens]
    assert any(any(draft.masked) for draft, _ in compared)


def test_what_is_kept_of_a_refused_answer_is_seen_by_the_first_pass_after_it(engine):
    schema = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2}
    made = engine(spiteful_model(2, 32), 32)
    spec = checked(schema | {"uniqueItems": True})
    drafts = drafts_of(made, Request(token_ids=PROMPT, constraint=spec, max_tokens=60))
    again = [pair for pair in drafts[1:] if pair[0].step == 1]
    assert again
    for draft, shown in again:
        assert draft.pinned > 0
        assert MASK not in shown.tokens[: draft.pinned - 1]
        assert shown.tokens[draft.pinned - 1 :].count(MASK) >= 32 - draft.pinned


@pytest.mark.parametrize("constrained", [False, True])
def test_what_comes_after_a_stop_is_not_streamed(engine, tokens_of, constrained):
    text = [*tokens_of("One desk. Two lamps, three tents."), 106]
    spec = Tools([TOOL]) if constrained else None
    comma = text[len(tokens_of("One desk. Two lamps"))]
    for stops in ({"stop": ["lamps"]}, {"stop_token_ids": [comma]}):
        made = engine(knows(text, 32, range(0, 40, 2)), 32, order="prefix")
        result, events = streamed(made, Request(token_ids=PROMPT, constraint=spec, **stops))
        assert result.text == ("One desk. Two " if "stop" in stops else "One desk. Two lamps")
        assert "".join(event.text for event in events) == result.text
        written = [token for event in events for token in event.tokens]
        assert written == text[: len(written)]
        assert len(written) == result.stats.tokens


def test_an_edit_replaces_a_token_that_stands(engine, tokens_of):
    """The model is sure of one age while the canvas is masked, and of another once it is not."""
    first, second = ([*tokens_of(f'{{"name": "Olga", "age": {age}}}'), 106] for age in (61, 92))
    assert len(first) == len(second) <= 32

    def wish(before, canvas):
        text = first if MASK in canvas.tolist()[: len(first)] else second
        return scores_of(text, 0, 32, ())

    ages = []
    for edits in (None, 0.9):
        made = engine(wish, 32, edit_threshold=edits)
        request = Request(token_ids=PROMPT, constraint=JsonSchema(PERSON), max_tokens=60)
        ages.append(json.loads(made.generate(request).text)["age"])
    assert ages == [61, 92]


def test_a_canvas_is_read_at_most_as_often_as_edits_may_take(engine):
    wish = spiteful_model(1, 16)
    for most in (0, 3):
        settings = {"edit_threshold": 0.0, "edit_passes": most}
        made = engine(wish, 16, **settings)
        made.generate(Request(token_ids=PROMPT, max_tokens=16))
        (passes,) = canvases(made.model.shown)
        complete = [each for each in passes if MASK not in each.tokens]
        assert len(complete) == most
        assert all(a.tokens != b.tokens for a, b in pairwise(complete))


@pytest.mark.parametrize(
    ("setting", "value", "problem"),
    [
        ("mask", -1, "mask must be the id of a token, got -1"),
        ("threshold", 1.5, "threshold must be a probability, got 1.5"),
        ("edit_threshold", -0.1, "edit_threshold must be a probability or None, got -0.1"),
        ("edit_passes", -1, "edit_passes must be 0 or more, got -1"),
        ("order", "any", "order must be joint or prefix, got 'any'"),
        ("doubt", -0.5, "doubt must be a number of tokens or None, got -0.5"),
        ("max_steps", 0, "max_steps must be at least 1, got 0"),
    ],
)
def test_impossible_settings_are_refused_by_name(setting, value, problem):
    with pytest.raises(DlmError, match=problem):
        sampler_of("reveal", {"mask": MASK, setting: value})
