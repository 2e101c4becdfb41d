"""Drafted, an answer is the one that is written token by token, and takes fewer passes."""

from dataclasses import replace
from itertools import pairwise
from random import Random as Dice

import pytest
import torch
from doubles import Obsessed, Scripted
from exhaustive import by_default
from training.extraction import extract
from values import PROMPT, V

from dlm import Autoregressive, DlmError, Draft, Engine, Finished, JsonSchema, Regex, Request

ITEMS = [extract(Dice(f"drafts/{i}"), "heldout") for i in range(3)]
SETTINGS = [("schema", 0.0), ("free", 0.8), ("schema", 0.8), ("free", 0.0)]


def requests_of(spec):
    return [
        Request(
            prompt=item.prompt,
            constraint=JsonSchema(item.schema) if spec == "schema" else None,
            seed=seed,
            max_tokens=96,
        )
        for seed, item in enumerate(ITEMS)
    ]


@pytest.fixture(scope="module")
def engines():
    """The built-in model's, without drafts and with, by temperature."""
    made = {
        (heat, drafts): Engine.load(
            device="cpu", decoding=Autoregressive(temperature=heat, drafts=drafts)
        )
        for heat in (0.0, 0.8)
        for drafts in (False, True)
    }
    yield made
    for engine in made.values():
        engine.close()


@pytest.mark.parametrize(("spec", "heat"), by_default(SETTINGS, 2))
def test_drafted_answers_are_those_written_token_by_token(engines, spec, heat):
    """Greedy, and drawn too: a token is drawn by the same number, whichever pass it is drawn in."""
    plain = engines[heat, False].generate(requests_of(spec))
    drafted = engines[heat, True].generate(requests_of(spec))
    for one, other in zip(plain, drafted, strict=True):
        assert other.token_ids == one.token_ids
        assert other.finish_reason == one.finish_reason
        assert other.stats.causal_calls <= one.stats.causal_calls
        assert other.stats.denoiser_calls <= other.stats.causal_calls
        assert other.stats.drafts_kept <= other.stats.drafted
    calls = [sum(r.stats.causal_calls for r in results) for results in (plain, drafted)]
    assert 2 * calls[1] < calls[0]


def test_different_numbers_to_draw_by_give_different_answers(engines):
    """Otherwise the equality of drawn answers would say nothing."""
    request = requests_of("free")[0]
    texts = {
        tuple(engines[0.8, True].generate(replace(request, max_tokens=24, seed=seed)).token_ids)
        for seed in range(3)
    }
    assert len(texts) > 1


def test_drafted_requests_give_in_a_batch_exactly_what_each_gives_alone(engines):
    engine = engines[0.8, True]
    together = engine.generate(requests_of("schema"))
    for request, result in zip(requests_of("schema"), together, strict=True):
        alone = engine.generate(request)
        assert alone.token_ids == result.token_ids
        assert alone.stats.drafted == result.stats.drafted


def test_a_sure_canvas_is_written_in_one_pass_and_the_next_is_drafted_after_it(
    engine_of, tokens_of
):
    script = tokens_of('{"name": "Olga Lopez", "age": 61, "city": "Oslo"}<turn|>')
    model = Scripted(V, len(PROMPT), script, canvas_length=8)
    engine = engine_of(model, decoding=Autoregressive(drafts=True))
    result = engine.generate(Request(token_ids=PROMPT, max_tokens=90))
    assert result.token_ids == script[:-1]
    assert result.stats.causal_calls <= 1 + -(-len(script) // 8)
    assert result.stats.drafted == result.stats.drafts_kept >= len(script) - 2 * 8


def test_a_draft_that_is_wrong_costs_no_pass_and_leaves_no_trace(engine_of):
    """Canvases want one thing, and the causal model another: each pass writes one token still."""

    class Torn(Obsessed):
        def predict(self, tokens, last, cache):
            return 100.0 * torch.nn.functional.one_hot(
                torch.tensor([300] * sum(last.values())), V
            ) + super().predict(tokens, last, cache).mul(0)

        def wish(self, committed, canvas, soft_embedding):
            logits = super().wish(committed, canvas, soft_embedding)
            logits[0, 300] = 200.0  # the token that is written, and then others
            return logits

    engine = engine_of(Torn(V, [400], canvas_length=4), decoding=Autoregressive(drafts=True))
    engine.add(Request(token_ids=PROMPT, max_tokens=12))
    result = None
    while engine.busy:
        for event in engine.step():
            result = event.result if isinstance(event, Finished) else result
        for slot, sequence in engine._scheduler.running.items():
            held = sequence.prompt + sequence.tokens
            assert engine._cache.tokens[slot] == held[: engine._cache.length(slot)]
    assert result is not None
    assert result.token_ids == [300] * 12
    assert result.stats.causal_calls == 12
    assert result.stats.drafted > 0 == result.stats.drafts_kept


@pytest.mark.parametrize("spec", ["schema", "free"])
def test_each_pass_shows_what_it_wrote_and_then_its_canvas(engines, spec):
    """The written parts of all pictures are the answer, in order; what a pass accepts is a draft of
    the next, of which a leading part is written."""
    request = requests_of(spec)[1]
    *events, finished = engines[0.0, True].stream(request)
    drafts = [event for event in events if isinstance(event, Draft)]
    assert isinstance(finished, Finished)
    written = [token for draft in drafts for token in draft.tokens[: draft.pinned]]
    assert written[: len(finished.result.token_ids)] == finished.result.token_ids
    assert [draft.passes for draft in drafts] == [*range(1, finished.result.stats.calls + 1)]
    for draft, later in pairwise(drafts):
        assert later.committed == draft.committed + draft.pinned
        assert len(draft.accepted) == len(draft.masked) == len(draft.tokens) >= draft.suspect
        assert draft.accepted == sorted(draft.accepted, reverse=True)  # a leading run
    judged = [
        draft.tokens[draft.pinned : sum(draft.accepted)][:count] == later.tokens[:count]
        for draft, later in pairwise(drafts)
        if (count := min(sum(draft.accepted) - draft.pinned, later.pinned - 1)) > 0
    ]
    assert any(judged)
    assert any(draft.suspect < len(draft.tokens) for draft in drafts) is (spec == "schema")


def test_what_the_grammar_refuses_is_not_drafted(engine_of, tokens_of):
    script = tokens_of("```json abc```<turn|>")
    model = Scripted(V, len(PROMPT), script)
    engine = engine_of(model, decoding=Autoregressive(drafts=True))
    result = engine.generate(Request(token_ids=PROMPT, constraint=Regex("[a-c]{3,9}")))
    plain = engine_of(model, decoding=Autoregressive()).generate(
        Request(token_ids=PROMPT, constraint=Regex("[a-c]{3,9}"))
    )
    assert result.token_ids == plain.token_ids


def test_who_cannot_denoise_cannot_draft(engine_of):
    class OnlyNext:
        vocab_size, max_positions, softcap = V, 100, None
        device = torch.device("cpu")

        def new_cache(self, slots):
            raise NotImplementedError

        def predict(self, tokens, last, cache):
            raise NotImplementedError

    with pytest.raises(DlmError, match="a OnlyNext denoises no canvases: it cannot draft"):
        engine_of(OnlyNext(), decoding=Autoregressive(drafts=True))
