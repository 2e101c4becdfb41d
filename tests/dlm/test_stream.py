"""Events before the end: committed text stays, and all of it together is the result."""

from types import SimpleNamespace

import pytest
from doubles import Obsessed, Random
from driven import events_of, streamed
from exhaustive import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from oracle import judge
from specs import checked
from values import PROMPT, V

from dlm import Choice, Committed, Draft, Finished, JsonSchema, Regex, Request
from dlm.stream import Stream

FEW = examples(15, suppress_health_check=[HealthCheck.too_slow])
WIDE = "日本語 😀 für ß"  # the built-in tokenizer splits all of these characters into bytes
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


class CountedPieces(list):
    """Bytes of tokens, of which `count` were read."""

    count = 0

    def __getitem__(self, token):
        self.count += 1
        return super().__getitem__(token)


def stream_over(pieces, **settings):
    vocabulary = SimpleNamespace(pieces=pieces, call=None)
    return Stream(vocabulary=vocabulary, reasoning=None, **{"calls": False, **settings})


def events_and_result(engine, request):
    engine.add(request)
    events = events_of(engine)
    return events, events[-1].result


def committed_of(events):
    """Return the committed tokens, and the pieces of the text and of the reasoning."""
    committed = [event for event in events if isinstance(event, Committed)]
    tokens = [token for event in committed for token in event.tokens]
    return tokens, [event.text for event in committed], [event.reasoning for event in committed]


@FEW
@given(model=MODELS, spec=SPECS, thinking=st.booleans(), seed=st.integers(0, 99))
def test_all_committed_text_is_the_result(engine_of, model, spec, thinking, seed):
    engine = engine_of(model)
    request = Request(
        token_ids=PROMPT, constraint=spec, seed=seed, max_tokens=60, thinking=thinking
    )
    result, events = streamed(engine, request)
    tokens, texts, reasonings = committed_of(events)
    assert "".join(texts) == result.text
    assert "".join(reasonings) == (result.reasoning or "")
    stop = tokens[len(result.token_ids) :]
    assert tokens[: len(result.token_ids)] == result.token_ids
    assert len(stop) == result.complete
    assert set(stop) <= set(engine.config.stops)
    if spec is not None:
        matcher = judge(spec, engine.vocabulary)
        assert all(matcher.accept_string(text) for text in texts if text)


@pytest.mark.parametrize("before", range(0, 17, 3))
def test_a_character_that_two_canvases_share_is_emitted_whole(scripted, tokens_of, before):
    text = f'"{"a" * before}{WIDE}"'
    for spec in (None, JsonSchema({"type": "string"})):
        engine = scripted(f"{text}<turn|>", canvas_length=8)
        result, events = streamed(engine, Request(token_ids=PROMPT, constraint=spec))
        tokens, texts, _ = committed_of(events)
        assert len(texts) >= result.stats.canvases > 2
        assert "".join(texts) == result.text == text
        assert "\ufffd" not in "".join(texts)
        assert tokens == tokens_of(f"{text}<turn|>")


@pytest.mark.parametrize("before", range(0, 8, 2))
def test_reasoning_is_emitted_in_whole_characters(scripted, before):
    thought = "a" * before + WIDE
    engine = scripted(f"{OPEN}{thought}{CLOSE}7<turn|>", canvas_length=8)
    spec = JsonSchema({"type": "integer"})
    result, events = streamed(engine, Request(token_ids=PROMPT, constraint=spec, thinking=True))
    _, texts, reasonings = committed_of(events)
    assert "".join(reasonings) == result.reasoning == thought
    assert sum(bool(reasoning) for reasoning in reasonings) > 2
    assert "".join(texts) == "7"


def test_a_text_that_is_cut_within_a_character_ends_with_a_replacement_character(
    scripted, tokens_of
):
    cut = len(tokens_of("ab😀")) - 1
    result, events = streamed(scripted("ab😀"), Request(token_ids=PROMPT, max_tokens=cut))
    _, texts, _ = committed_of(events)
    assert "".join(texts) == result.text == "ab\ufffd"
    assert result.finish_reason == "length"


def test_pinned_tokens_are_emitted_before_their_canvas_ends(engine_of):
    engine = engine_of(Obsessed(V, [105], canvas_length=64))  # no grammar allows it
    spec = JsonSchema(
        {"type": "object", "properties": {"name": {"type": "integer"}}, "required": ["name"]},
        max_whitespace=1,  # then the answer fits one canvas
    )
    events, result = events_and_result(engine, Request(token_ids=PROMPT, constraint=spec))
    assert result.stats.canvases == 1
    first = next(i for i, event in enumerate(events) if isinstance(event, Committed))
    drafts = [event for event in events[first:] if isinstance(event, Draft)]
    early = events[first].tokens
    assert len(drafts) > 0
    assert all(draft.tokens[: len(early)] == early for draft in drafts)
    assert all(draft.pinned >= len(early) for draft in drafts)
    assert events[first].text == result.text[: len(events[first].text)] != ""


def test_drafts_may_change_and_are_not_committed(engine_of):
    engine = engine_of(Random(V, seed=3))
    events, result = events_and_result(engine, Request(token_ids=PROMPT, max_tokens=16))
    drafts = [event for event in events if isinstance(event, Draft)]
    assert isinstance(events[0], Draft)
    assert len(events[0].tokens) == len(events[0].accepted) == engine.model.canvas_length
    assert len({tuple(draft.tokens) for draft in drafts}) > 1
    tokens, texts, _ = committed_of(events)
    assert tokens == drafts[-1].tokens[: len(tokens)]
    assert "".join(texts) == result.text


def test_an_answer_with_a_check_is_emitted_at_its_end(scripted):
    """A refused answer goes back over several canvases; no text of them may have been emitted."""
    text = '["laptop", "desk", "lamp", "tent", "chair", "desk"]<turn|>'
    engine = scripted(text, canvas_length=8)
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    request = Request(token_ids=PROMPT, constraint=checked(schema))
    events, result = events_and_result(engine, request)
    kinds = [type(event) for event in events]
    assert kinds.count(Committed) == 1
    assert kinds[-2:] == [Committed, Finished]
    assert events[-2].text == result.text
    assert result.stats.canvases > 3
    assert result.stats.rollbacks > 0


def test_events_carry_the_numbers_of_their_requests(scripted):
    engine = scripted(f'"{WIDE}"<turn|>', canvas_length=8)
    numbers = [engine.add(Request(token_ids=PROMPT, max_tokens=limit)) for limit in (60, 9)]
    texts, results = dict.fromkeys(numbers, ""), {}
    for event in events_of(engine):
        if isinstance(event, Committed):
            texts[event.request] += event.text
        elif isinstance(event, Finished):
            results[event.request] = event.result.text
    assert texts == results
    assert results[numbers[0]].startswith(results[numbers[1]].removesuffix("\ufffd"))


@pytest.mark.parametrize(
    "settings", [{}, {"stop": ("zz",)}, {"calls": True, "opening": "<call>"}], ids=str
)
def test_each_token_of_an_answer_that_grows_is_read_once(settings):
    pieces = CountedPieces([b"a", b" b", "é".encode()[:1], "é".encode()[1:]])
    stream, tokens, texts = stream_over(pieces, **settings), [], []
    for token in [0, 1, 2, 3] * 100:
        assert stream.stopped_at([*tokens, token], len(tokens)) is None
        tokens = [*tokens, token]
        texts.append(stream.emit(tokens).text)
    texts.append(stream.emit(tokens, ended=True).text)
    assert "".join(texts) == "a bé" * 100
    assert pieces.count <= len(tokens)


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=9))
def test_a_text_does_not_depend_on_what_was_read_before(answers):
    pieces = [b"a", b"b", "é".encode()[:1], "é".encode()[1:]]
    stream = stream_over(pieces)
    for answer in answers:
        assert stream.text(answer) == stream_over(pieces).text(answer)
