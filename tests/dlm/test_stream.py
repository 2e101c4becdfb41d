"""What is told before the end: it stays, it is text, and all of it together is the result."""

import pytest
from doubles import Obsessed, Random, Scripted
from exhaustive import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from oracle import judge
from specs import checked
from values import PROMPT, V

from dlm import Choice, Committed, Draft, Finished, JsonSchema, Regex, Request

FEW = examples(15, suppress_health_check=[HealthCheck.too_slow])
WIDE = "日本語 😀 für ß"  # the built-in tokenizer knows none of these characters: all are bytes
OPEN, CLOSE = "<|channel>thought\n", "<channel|>"

SPECS = st.sampled_from(
    [
        None,
        JsonSchema({"type": "array", "items": {"type": "string"}, "maxItems": 3}),
        JsonSchema({"type": "object", "properties": {"é": {"type": "number"}}, "required": ["é"]}),
        Choice(["日本", "日曜日に行く", "😀😀😀😀😀"]),
        Regex("(é|ß|[a-c]){3,20}"),
    ]
)
MODELS = st.one_of(
    st.builds(lambda seed, scale: Random(V, seed, scale), st.integers(0, 999), st.just(3.0)),
    st.builds(lambda seed, scale: Random(V, seed, scale), st.integers(0, 999), st.just(60.0)),
    st.sampled_from([[105], [0], [303], [348, 267], [1, 106, 50, 0, 100, 300], [100, 101]]).map(
        lambda tokens: Obsessed(V, tokens)
    ),
)


def events_of(engine, request):
    """All that is told of a request, and what it comes to."""
    engine.add(request)
    events = []
    while engine.busy:
        events += engine.step()
    assert isinstance(events[-1], Finished)
    return events, events[-1].result


def told_of(events):
    """What became final: the tokens, and the pieces of the text and of the reasoning."""
    told = [event for event in events if isinstance(event, Committed)]
    tokens = [token for event in told for token in event.tokens]
    return tokens, [event.text for event in told], [event.reasoning for event in told]


@FEW
@given(model=MODELS, spec=SPECS, thinking=st.booleans(), seed=st.integers(0, 99))
def test_what_is_told_adds_up_to_the_result(engine_of, model, spec, thinking, seed):
    engine = engine_of(model)
    request = Request(
        token_ids=PROMPT, constraint=spec, seed=seed, max_tokens=60, thinking=thinking
    )
    events, result = events_of(engine, request)
    tokens, texts, reasonings = told_of(events)
    assert "".join(texts) == result.text
    assert "".join(reasonings) == (result.reasoning or "")
    stop = tokens[len(result.token_ids) :]
    assert tokens[: len(result.token_ids)] == result.token_ids
    assert len(stop) == (result.finish_reason == "stop")
    assert set(stop) <= set(engine.config.stops)
    if spec is not None:
        matcher = judge(spec, engine.vocabulary)
        assert all(matcher.accept_string(text) for text in texts if text)


@pytest.mark.parametrize("before", range(0, 17, 3))
def test_a_character_that_two_canvases_share_is_told_whole(engine_of, tokens_of, before):
    said = "a" * before + WIDE
    script = tokens_of(f'"{said}"<turn|>')
    for spec in (None, JsonSchema({"type": "string"})):
        engine = engine_of(Scripted(V, len(PROMPT), script, canvas_length=8))
        events, result = events_of(engine, Request(token_ids=PROMPT, constraint=spec))
        tokens, texts, _ = told_of(events)
        assert len(texts) >= result.stats.canvases > 2
        assert "".join(texts) == result.text == f'"{said}"'
        assert "\ufffd" not in "".join(texts)
        assert tokens == script


@pytest.mark.parametrize("before", range(0, 8, 2))
def test_reasoning_too_is_told_in_whole_characters(engine_of, tokens_of, before):
    said = "a" * before + WIDE
    script = tokens_of(f"{OPEN}{said}{CLOSE}7<turn|>")
    engine = engine_of(Scripted(V, len(PROMPT), script, canvas_length=8))
    spec = JsonSchema({"type": "integer"})
    events, result = events_of(engine, Request(token_ids=PROMPT, constraint=spec, thinking=True))
    _, texts, reasonings = told_of(events)
    assert "".join(reasonings) == result.reasoning == said
    assert sum(bool(reasoning) for reasoning in reasonings) > 2
    assert "".join(texts) == "7"


def test_a_text_that_is_cut_within_a_character_ends_in_a_replacement(engine_of, tokens_of):
    script = tokens_of("ab😀")
    engine = engine_of(Scripted(V, len(PROMPT), script))
    cut = len(script) - 1
    events, result = events_of(engine, Request(token_ids=PROMPT, max_tokens=cut))
    _, texts, _ = told_of(events)
    assert "".join(texts) == result.text == "ab\ufffd"
    assert result.finish_reason == "length"


def test_what_is_pinned_is_told_before_its_canvas_ends(engine_of):
    engine = engine_of(Obsessed(V, [105], canvas_length=64))  # no grammar allows it
    spec = JsonSchema(
        {"type": "object", "properties": {"name": {"type": "integer"}}, "required": ["name"]},
        max_whitespace=1,  # so that it ends within one canvas, whatever the model pads it with
    )
    events, result = events_of(engine, Request(token_ids=PROMPT, constraint=spec))
    assert result.stats.canvases == 1
    first = next(i for i, event in enumerate(events) if isinstance(event, Committed))
    behind = [event for event in events[first:] if isinstance(event, Draft)]
    early = events[first].tokens
    assert len(behind) > 0
    assert all(draft.tokens[: len(early)] == early for draft in behind)
    assert all(draft.pinned >= len(early) for draft in behind)
    assert events[first].text == result.text[: len(events[first].text)] != ""


def test_a_draft_may_change_and_is_not_told_as_text(engine_of):
    engine = engine_of(Random(V, seed=3))
    events, result = events_of(engine, Request(token_ids=PROMPT, max_tokens=16))
    drafts = [event for event in events if isinstance(event, Draft)]
    assert len({tuple(draft.tokens) for draft in drafts}) > 1
    tokens, texts, _ = told_of(events)
    assert tokens == drafts[-1].tokens[: len(tokens)]
    assert "".join(texts) == result.text


def test_what_only_a_check_can_tell_is_told_at_the_end(engine_of, tokens_of):
    """A refused answer is taken back over canvases that a reader would have seen."""
    script = tokens_of('["laptop", "desk", "lamp", "tent", "chair", "desk"]<turn|>')
    engine = engine_of(Scripted(V, len(PROMPT), script, canvas_length=8))
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    spec = checked(schema)
    events, result = events_of(engine, Request(token_ids=PROMPT, constraint=spec))
    kinds = [type(event) for event in events]
    assert kinds.count(Committed) == 1
    assert kinds[-2:] == [Committed, Finished]
    assert events[-2].text == result.text
    assert result.stats.canvases > 3


def test_two_requests_are_told_apart(engine_of, tokens_of):
    engine = engine_of(Scripted(V, len(PROMPT), tokens_of(f'"{WIDE}"<turn|>'), canvas_length=8))
    numbers = [engine.add(Request(token_ids=PROMPT, max_tokens=room)) for room in (60, 9)]
    texts, ends = dict.fromkeys(numbers, ""), {}
    while engine.busy:
        for event in engine.step():
            if isinstance(event, Committed):
                texts[event.request] += event.text
            elif isinstance(event, Finished):
                ends[event.request] = event.result.text
    assert texts == ends
    assert ends[numbers[0]].startswith(ends[numbers[1]].removesuffix("\ufffd"))
