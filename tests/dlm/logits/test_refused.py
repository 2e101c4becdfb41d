"""Rows that were refused in the pass before: reading them under their masks changes nothing but
what a step costs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from doubles import Dreamer
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from scores import scores_of
from torch import Tensor
from values import PROMPT, V

from dlm import JsonSchema, Regex, Request
from dlm.grammar import Frontier, Guidance
from dlm.kernels.vocab import vocab_pass
from dlm.kernels.vocab_rows import RowMasks
from dlm.logits.canvas_logits import (
    CANDIDATES,
    THRESHOLD,
    CanvasLogits,
    DeviceCopies,
    HostRows,
    UnderMask,
)
from dlm.logits.distributions import TokenDistributions
from dlm.logits.guided import GuidedCanvas, LogitsGuide
from dlm.logits.masks import MaskTable
from dlm.logits.refused import RefusedRow
from dlm.logits.sampling import Cut

B, L, SIZE = 3, 5, 700
WORDS = -(-SIZE // 32)
SCHEMA = JsonSchema({"type": "object", "properties": {"a": {"type": "string"}}})


def guidance(bitmask: Tensor, rows: list[int], length: int = L, refusal=None) -> Guidance:
    return Guidance(
        guess=[0] * length,
        bitmask=bitmask,
        rows=rows,
        suspect=length,
        repaired=False,
        stop=length,
        scored=length,
        refusal=refusal,
    )


@pytest.fixture(scope="module")
def apart():
    """Let the host have copies of the device's memory, where the device is the host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceCopies, "to_host", lambda self, tensor, **_: tensor.clone())
        yield


@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.1, 12.0, 40.0]),
    skip=st.integers(0, 2),
    cut=st.booleans(),
    rows=st.sampled_from([4, 1024]),
)
@examples(80)
def test_a_step_has_the_same_results_whatever_was_refused_before(
    apart, seed, scale, skip, cut, rows
):
    """The refused row has its mask again, another one, one token, or none. The grammar's table is
    another tensor in the end, and the table of all masks may begin anew."""
    rng = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(B, L, SIZE, generator=rng)
    uniform = torch.rand(B, L, generator=rng)
    bitmask = torch.randint(-(2**31), 2**31, (4, WORDS + 1), generator=rng).int()
    masks = torch.randint(-2, 4, (B, L - skip), generator=rng).tolist()
    positions = torch.randint(L - skip - 2, (B,), generator=rng).tolist()
    masks[0][positions[0]] = 2
    refused = [
        RefusedRow(at, bitmask, max(0, row[at])) for at, row in zip(positions, masks, strict=True)
    ]
    refused[1] = refused[1]._replace(mask=3)
    elsewhere = [row._replace(bitmask=bitmask.clone()) for row in refused]
    cuts = [None, None, Cut(temperature=1.0, top_k=5) if cut else None]
    outcomes = []
    for before in ([], [None, *refused[1:]], refused, elsewhere):
        step = TokenDistributions(
            logits,
            [0.5, 0.7, 1.0],
            uniform,
            None,
            MaskTable(WORDS, rows),
            cuts=cuts,
            skipped=[skip] * B,
            refused=before,
        )
        for i, row in enumerate(masks):
            step.restrict(i, guidance(bitmask, row[: L - skip - i], L - skip))
        step.mask()
        table = torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(1))
        means = step.distributions().expected(table)
        outcomes.append((step.entropies, step.draws([1.0, 0.5, 0.0]), step.confidences, means))
    for other in outcomes[1:]:
        for one, two in zip(outcomes[0], other, strict=True):
            assert torch.equal(one, two)


def test_a_row_that_is_refused_again_is_not_read_again():
    logits, uniform = torch.zeros(1, L, SIZE), torch.zeros(1, L)
    bitmask = torch.tensor([[1] + [0] * (WORDS - 1), [2] + [0] * (WORDS - 1)]).int()
    counts = []
    for refused in ([], [RefusedRow(2, bitmask, 0)], [RefusedRow(2, bitmask, 1)]):
        step = TokenDistributions(logits, [1.0], uniform, None, MaskTable(WORDS), refused=refused)
        before = step.copies.count
        step.restrict(0, guidance(bitmask, [~0, ~0, 0]))
        step.mask()
        counts.append(step.copies.count - before)
        assert step.entropies[0, 2] == 0
    other, again, another = counts
    assert again < other
    assert again < another


@given(
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([0.1, 3.0, 7.0, 20.0, 500.0]),
    share=st.sampled_from([0.998, 0.5, 0.01, 1 / 3000]),
    softcap=st.sampled_from([None, 30.0]),
    heat=st.sampled_from([1.0, 2.5]),
    count=st.sampled_from([1, 3, 200]),
)
def test_candidates_of_a_row_that_was_read_under_the_mask_are_those_of_a_search(
    seed, scale, share, softcap, heat, count
):
    size, rng = 3000, np.random.default_rng(seed)
    logits = torch.tensor(scale * rng.normal(size=(2, size))).float()
    bits = np.zeros(-(-size // 32) * 32, dtype=bool)
    bits[:size] = rng.random(size) < share
    bits[rng.integers(size)] = True
    words = np.packbits(bits, bitorder="little").view(np.uint32)
    limits = {"softcap": softcap, "threshold": THRESHOLD, "k": CANDIDATES}
    inverse, uniform = torch.full((2,), heat), torch.zeros(2)
    rows = HostRows.of(vocab_pass(logits, inverse, uniform, **limits), size)
    mask = RowMasks(torch.from_numpy(words.view(np.int32))[None], torch.zeros(2).long())
    under = vocab_pass(logits, inverse, uniform, mask, **limits)
    copies = DeviceCopies(torch.device("cpu"))
    searched = CanvasLogits(rows, logits, heat, softcap, copies)
    under_mask = UnderMask(1, words, under, 1)
    read = CanvasLogits(rows, logits, heat, softcap, copies, under_mask)
    wrong = CanvasLogits(rows, logits, heat, softcap, copies, UnderMask(1, ~words, under, 1))

    expected, found = searched.candidates(1, words, count), read.candidates(1, words, count)

    assert wrong.candidates(1, words, count) == expected
    assert read.candidates(0, words, count) == searched.candidates(0, words, count)
    assert found.mass == pytest.approx(expected.mass, rel=2e-3, abs=1e-7)
    assert [logp for _, logp in found.ranked] == pytest.approx(
        [logp for _, logp in expected.ranked], abs=1e-3
    )
    assert all(bits[token] for token, _ in found.ranked)


def answers(engine_of, forget: bool, monkeypatch):
    """Return tokens and the rows that were fetched, of answers whose model wants what is
    forbidden."""
    with monkeypatch.context() as patch:
        if forget:
            patch.setattr(RefusedRow, "of", lambda guidance: None)
        engine = engine_of(Dreamer(V, 0, scale=3.0), slots=2)
        requests = [
            Request(token_ids=PROMPT, constraint=spec, seed=1, max_tokens=40)
            for spec in (SCHEMA, Regex("[a-f]{3,40}-[0-9]{1,9}"))
        ]
        results = engine.generate(requests)
    fetched = sum(result.stats.fetched_rows for result in results)
    return [result.token_ids for result in results], fetched


def test_answers_are_the_same_with_fewer_fetched_rows(engine_of, monkeypatch):
    tokens, fetched = answers(engine_of, False, monkeypatch)
    same, more = answers(engine_of, True, monkeypatch)
    assert tokens == same
    assert fetched < more


def test_another_engine_s_logits_are_rewritten_alike(compiler, monkeypatch):
    """A step after one that refused the same; then a canvas that has moved on."""
    compiled = compiler.compile(Regex("[a-f]{3,30}"))
    rng = torch.Generator().manual_seed(0)
    steps = [3 * torch.randn(2 * 16, V, generator=rng) for _ in range(4)]
    rewritten = []
    for forget in (False, True):
        guide = LogitsGuide(V, work=10**6)
        canvases = [
            GuidedCanvas(constraint=Frontier(compiled, 60), first=16 * i, length=16)
            for i in range(2)
        ]
        for at, step in enumerate(steps):
            logits = step.clone()
            results = guide.guide_(logits, canvases)
            assert len(guide._refused) == 2
            rewritten.append((logits, [result.guess for result in results]))
            if forget:
                guide._refused.clear()
            if at == 1:
                canvases[0].constraint.commit(results[0].guess[: results[0].suspect])
    for (one, guess), (other, same) in zip(rewritten[:4], rewritten[4:], strict=True):
        assert torch.equal(one, other)
        assert guess == same


def test_guidance_names_its_first_refusal_and_the_mask_that_was_queried(compiler, vocabulary):
    compiled = compiler.compile(Regex("[ab]c*"))
    (c,), (z,) = vocabulary.encode("c"), vocabulary.encode("z")
    logits = torch.zeros(3, V)
    logits[0, z] = logits[1, c] = logits[2, c] = 30.0
    refused = Frontier(compiled, 40).guide(scores_of(logits))
    position, mask = refused.refusal
    assert position == 0
    assert refused.rows[0] == mask
    assert RefusedRow.of(refused).words[c >> 5] >> (c & 31) & 1 == 0
    (a,) = vocabulary.encode("a")
    logits[0, a] = 40.0
    agreed = Frontier(compiled, 40).guide(scores_of(logits))
    assert agreed.refusal is None
    assert RefusedRow.of(agreed) is None


@pytest.mark.parametrize("refusal", [(L, 0), (-1, 0), (0, 4), (0, -1), (0.0, 0.0), (), 0, False])
def test_a_refusal_that_fits_no_canvas_is_an_error_of_its_constraint(refusal):
    step = TokenDistributions(
        torch.zeros(1, L, SIZE), [1.0], torch.zeros(1, L), None, MaskTable(WORDS)
    )
    bitmask = torch.zeros(4, WORDS, dtype=torch.int32)
    with pytest.raises((ValueError, TypeError)):
        step.restrict(0, guidance(bitmask, [], refusal=refusal))


def test_a_refusal_without_a_bitmask_is_not_read_again():
    step = TokenDistributions(
        torch.zeros(1, L, SIZE), [1.0], torch.zeros(1, L), None, MaskTable(WORDS)
    )
    masked_at_commit = replace(
        guidance(torch.empty(0, WORDS).int(), [], refusal=(1, 3)), bitmask=None
    )
    step.restrict(0, masked_at_commit)
    assert RefusedRow.of(masked_at_commit) is None
    step.restrict(0, guidance(torch.empty(0, WORDS).int(), []))


def test_a_row_of_a_canvas_whose_logits_are_no_numbers_is_queried_like_any_other():
    logits = torch.full((1, SIZE), 800.0)
    logits[0, 0] = torch.nan
    words = np.zeros(WORDS, np.uint32)
    words[1] = 1
    limits = {"threshold": THRESHOLD, "k": CANDIDATES}
    one, mask = (torch.ones(1), torch.zeros(1)), torch.from_numpy(words.view(np.int32))[None]
    rows = HostRows.of(vocab_pass(logits, *one, **limits), SIZE)
    under = vocab_pass(logits, *one, RowMasks(mask, torch.zeros(1).long()), **limits)
    scores = CanvasLogits(
        rows, logits, 1.0, None, DeviceCopies(torch.device("cpu")), UnderMask(0, words, under, 0)
    )
    assert [token for token, _ in scores.candidates(0, words, 3).ranked] == [32]
