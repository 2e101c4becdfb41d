"""A step's distributions against the definition, over whole rows in fp64; and what they cost."""

from functools import partial

import numpy as np
import pytest
import torch
from doubles import Dreamer, Scripted
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from values import PROMPT, V

import dlm.logits.distributions
from dlm import JsonSchema, Regex, Request
from dlm.grammar import Guidance
from dlm.kernels.vocab import vocab_pass
from dlm.logits.canvas_logits import DeviceCopies
from dlm.logits.distributions import TokenDistributions
from dlm.logits.masks import MaskTable

B, L, SIZE = 3, 5, 700
WORDS = -(-SIZE // 32)


def guidance(bitmask, rows) -> Guidance:
    return Guidance(
        guess=[0] * L, bitmask=bitmask, rows=rows, suspect=L, repaired=False, stop=L, scored=L
    )


def marginals_of(logits: Tensor, heat: list[float], uniform: Tensor, softcap) -> TokenDistributions:
    return TokenDistributions(logits, heat, uniform, softcap, MaskTable(WORDS))


def drawn_of(marginals: TokenDistributions) -> Tensor:
    return marginals.draws([1.0] * len(marginals.entropies))


def random_step(seed: int, scale: float, dtype: torch.dtype):
    """Logits from flat to peaked, temperatures, numbers to draw by, and masks of each canvas."""
    rng = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(B, L, SIZE, generator=rng)).to(dtype)
    heat = (torch.rand(B, generator=rng) * 0.4 + 0.4).tolist()
    bitmask = torch.randint(-(2**31), 2**31, (4, WORDS + 1), generator=rng).int()
    bitmask[1] = -1
    masks = [
        torch.randint(-SIZE, 4, (L,), generator=rng)
        .where(torch.rand(L, generator=rng) < 0.4, torch.randint(4, (L,), generator=rng))
        .tolist()[: L - i]
        for i in range(B)
    ]
    return logits, heat, torch.rand(B, L, generator=rng), bitmask, masks


def probabilities(logits: Tensor, heat: list[float], softcap, bitmask: Tensor, masks) -> Tensor:
    """Under the masks, in fp64."""
    x = logits.double()
    x = x if softcap is None else softcap * torch.tanh(x / softcap)
    x = x / torch.tensor(heat).double()[:, None, None]
    token = torch.arange(SIZE)
    for i, rows in enumerate(masks):
        for position, row in enumerate(rows):
            allowed = token == ~row if row < 0 else bitmask[row, token // 32] >> token % 32 & 1 == 1
            x[i, position, ~allowed] = -torch.inf
    return x.softmax(-1)


@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.1, 2.0, 5.0, 40.0]),
    softcap=st.sampled_from([None, 30.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@examples(60)
def test_entropies_draws_and_expectations_are_those_of_masked_rows(seed, scale, softcap, dtype):
    """The table is longer than any: of a list's tail, 1e-4 of a row may be missing."""
    logits, heat, uniform, bitmask, masks = random_step(seed, scale, dtype)
    marginals = marginals_of(logits, heat, uniform, softcap)
    for i, rows in enumerate(masks):
        marginals.restrict(i, guidance(bitmask, rows))
    marginals.mask()

    p = probabilities(logits, heat, softcap, bitmask, masks)
    expected = torch.special.entr(p).sum(-1).float()
    torch.testing.assert_close(marginals.entropies, expected, atol=2e-4, rtol=1e-4)
    mass = p.cumsum(-1)
    drawn = drawn_of(marginals)[..., None]
    reached = mass.gather(-1, drawn)[..., 0]
    assert (uniform - 1e-5 <= reached).all()
    assert (uniform + 1e-5 >= reached - p.gather(-1, drawn)[..., 0]).all()
    assert (p.gather(-1, drawn) > 0).all()
    table = torch.randn(SIZE, 7, generator=torch.Generator().manual_seed(1))
    means = marginals.distributions().expected(table)
    far = table.norm(dim=1).max() * 1e-4 + 1e-3
    assert ((means.double() - p.flatten(0, 1) @ table.double()).norm(dim=1) <= far).all()


@pytest.mark.parametrize("scale", [0.1, 5.0, 40.0])
def test_by_the_kernels_it_is_the_same(scale, monkeypatch):
    """In the interpreter, where there is no GPU; as far as fp32 goes."""
    outcomes = []
    for by_kernel in (False, True):
        monkeypatch.setattr(
            dlm.logits.distributions, "vocab_pass", partial(vocab_pass, by_kernel=by_kernel)
        )
        logits, heat, uniform, bitmask, masks = random_step(1, scale, torch.bfloat16)
        marginals = marginals_of(logits, heat, uniform, 30.0)
        for i, rows in enumerate(masks):
            marginals.restrict(i, guidance(bitmask, rows))
        marginals.mask()
        means = marginals.distributions().expected(torch.eye(SIZE))
        outcomes.append((marginals.entropies, drawn_of(marginals), means))
    for one, other in zip(*outcomes, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_a_token_that_is_named_is_certain_whatever_the_model_says():
    logits = torch.zeros(1, L, SIZE)
    logits[0, 1, 9] = -torch.inf
    marginals = marginals_of(logits, [0.5], torch.full((1, L), 0.99), None)
    marginals.restrict(0, guidance(torch.zeros(1, WORDS, dtype=torch.int32), [~7, ~9]))
    marginals.mask()
    assert marginals.entropies[0, :2].tolist() == [0, 0]
    assert drawn_of(marginals)[0, :2].tolist() == [7, 9]
    table = torch.randn(SIZE, 3)
    assert torch.equal(marginals.distributions().expected(table)[:2], table[[7, 9]])
    assert marginals.copies.count == 3  # temperatures, statistics, what is expected: no second pass


def test_nothing_is_left_of_what_was_listed_where_a_token_is_named():
    """One row lists the token that it is named already, another one several, in any place."""
    logits = torch.full((1, L, SIZE), -30.0)
    logits[0, 0, 7] = 30.0
    logits[0, 1, [3, 7, 12]] = 1.0
    logits[0, 2, range(SIZE)] = 0.0  # more than a list has places
    marginals = marginals_of(logits, [0.5], torch.zeros(1, L), None)
    marginals.restrict(0, guidance(None, [~7, ~7, ~7]))
    marginals.mask()
    assert marginals.confidences[0, :3].tolist() == [1, 1, 1]
    assert marginals.draws([0.3])[0, :3].tolist() == [7, 7, 7]


def test_where_nothing_is_possible_entropy_is_infinite_and_nothing_is_expected():
    logits = torch.zeros(1, L, SIZE)
    logits[0, 1] = -torch.inf
    logits[0, 2, :32] = -torch.inf
    bitmask = torch.zeros(1, WORDS, dtype=torch.int32)
    bitmask[0, 0] = -1
    marginals = marginals_of(logits, [0.5], torch.zeros(1, L), 30.0)
    marginals.restrict(0, guidance(bitmask, [0, 0, 0]))
    marginals.mask()
    assert marginals.entropies[0].isinf().tolist() == [False, True, True, False, False]
    assert ((drawn_of(marginals) >= 0) & (drawn_of(marginals) < SIZE)).all()
    means = marginals.distributions().expected(torch.ones(SIZE, 2))
    torch.testing.assert_close(means[:, 0], torch.tensor([1.0, 0, 0, 1, 1]))


def test_a_nan_harms_no_other_canvas():
    logits, heat, uniform, bitmask, masks = random_step(0, 5.0, torch.float32)
    outcomes = []
    for spoilt in (False, True):
        logits[1, 2, 3] = torch.nan if spoilt else 1.0
        marginals = marginals_of(logits, heat, uniform, 30.0)
        for i, rows in enumerate(masks):
            marginals.restrict(i, guidance(bitmask, rows))
        marginals.mask()
        means = marginals.distributions().expected(torch.ones(SIZE, 2)).view(B, L, 2)
        assert ((drawn_of(marginals) >= 0) & (drawn_of(marginals) < SIZE)).all()
        outcomes.append((marginals.entropies[::2], drawn_of(marginals)[::2], means[::2]))
    for one, other in zip(*outcomes, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("bitmask", "rows", "message"),
    [
        ((2, WORDS - 1), [0], f"{WORDS} words of int32 for {SIZE} tokens; got {WORDS - 1}"),
        ((2, WORDS), [0, 2], f"rows are 0 to 1, or ~token down to -{SIZE}, got 0 to 2"),
        ((2, WORDS), [-SIZE - 1], f"got -{SIZE + 1} to -{SIZE + 1}"),
        ((2, WORDS), [0] * (L + 1), f"{L + 1} masks for {L} positions"),
    ],
)
def test_masks_that_do_not_fit_are_refused(bitmask, rows, message):
    marginals = marginals_of(torch.zeros(1, L, SIZE), [1.0], torch.zeros(1, L), None)
    before = marginals.entropies.clone()
    with pytest.raises(ValueError, match=message):
        marginals.restrict(0, guidance(torch.zeros(bitmask, dtype=torch.int32), rows))
    marginals.mask()
    assert torch.equal(marginals.entropies, before)


def test_a_token_that_is_drawn_although_its_row_is_all_but_sure_is_an_allowed_one():
    """Token 600 has a probability of 5e-7, and the number to draw by is the last below 1."""
    logits = torch.full((1, L, SIZE), -100.0)
    logits[0, :, 5], logits[0, :, 600] = 0, -14.5
    words = np.full((2, WORDS), 0xFFFFFFFF, dtype=np.uint32)
    words[0, 600 // 32] = 0
    bitmask = torch.from_numpy(words.view(np.int32))
    marginals = marginals_of(logits, [1.0], torch.full((1, L), 1 - 2.0**-24), None)
    marginals.restrict(0, guidance(bitmask, [0, 1]))
    marginals.mask()
    assert drawn_of(marginals)[0, :2].tolist() == [5, 600]


def test_rows_are_read_again_only_where_a_mask_changes_something(monkeypatch):
    """Rows that are sure of token 5: one whose mask forbids others, one whose mask forbids 5;
    and a flat row, whose mask forbids a token that is as likely as any."""
    logits = torch.zeros(1, L, SIZE)
    logits[0, :2, 5] = 60.0
    words = np.full((2, WORDS), 0xFFFFFFFF, dtype=np.uint32)
    words[0, 3] = 0
    words[1, 0] = ~np.uint32(1 << 5)
    marginals = marginals_of(logits, [1.0], torch.zeros(1, L), None)
    read, original = [], marginals._passed

    def passed(heat, uniform, masks, rows):
        read.append(rows.tolist())
        return original(heat, uniform, masks, rows)

    monkeypatch.setattr(marginals, "_passed", passed)
    marginals.restrict(0, guidance(torch.from_numpy(words.view(np.int32)), [0, 1, 0]))
    marginals.mask()
    assert read == [[1, 2]]
    assert drawn_of(marginals)[0, 1] == 0
    assert marginals.entropies[0, 0] < 1e-20


@pytest.fixture
def to_host(monkeypatch):
    """The shapes of what has come to the host."""
    shapes, original = [], DeviceCopies.to_host
    monkeypatch.setattr(
        DeviceCopies, "to_host", lambda link, x, **_: shapes.append([*x.shape]) or original(link, x)
    )
    return shapes


def steps(engine, requests):
    """The stats of all after each step, until they have ended."""
    for request in requests:
        engine.add(request)
    while engine.busy:
        engine.step()
        yield [s.stats for s in engine._scheduler.running.values() if s.stats.denoiser_calls]


@pytest.mark.parametrize("slots", [1, 3])
def test_a_step_with_nothing_to_repair_makes_one_copy_to_the_host(
    engine_of, tokens_of, to_host, slots
):
    """For all slots: what is known of every row, and no row itself."""
    spec, text = Regex('[{]"a": [0-9]{1,3}[}]'), tokens_of('{"a": 12}')
    engine = engine_of(Scripted(V, len(PROMPT), [*text, 106]), slots=slots)
    requests = [Request(token_ids=PROMPT, constraint=spec, seed=i) for i in range(slots)]
    seen = 0
    for stats in steps(engine, requests):
        if len(to_host) > seen:
            assert len(to_host) == seen + 1
            assert to_host[-1][0] == slots * engine.model.canvas_length
            assert all(one.fetched_rows == 0 for one in stats)
            seen += 1
    assert seen > 1


def test_copies_and_rows_are_counted(engine_of, to_host):
    """A model wants forbidden tokens and is sure of nothing: all that comes to the host
    is in its stats, and little is fetched."""
    spec = JsonSchema({"type": "object", "properties": {"a": {"type": "string"}}})
    engine = engine_of(Dreamer(V, 0, scale=3.0), slots=1)
    result = engine.generate(Request(token_ids=PROMPT, constraint=spec, seed=1, max_tokens=40))
    stats = result.stats
    assert stats.copies > len(to_host) > stats.denoiser_calls
    fetched = [shape for shape in to_host if shape[1] == V]
    assert stats.fetched_rows == sum(shape[0] for shape in fetched) > 0
    sent = stats.copies - len(to_host)
    # Temperatures, masks, their rows, tokens, embeddings; refused rows before the step, and after.
    assert sent <= 7 * stats.denoiser_calls


def test_masks_that_were_sent_stay_there(engine_of):
    """A second request of the same kind sends hardly any."""
    engine = engine_of(Dreamer(V, 0, scale=3.0), slots=1)
    request = Request(token_ids=PROMPT, constraint=Regex("[a-f]{3,40}-[0-9]{1,9}"), max_tokens=40)
    engine.generate(request)
    first = engine._decoder._context.masks.count
    engine.generate(request)
    assert 0 < first == engine._decoder._context.masks.count


@pytest.mark.parametrize("scale", [2.0, 5.0, 40.0])
@pytest.mark.parametrize("masked", [False, True])
def test_a_lower_temperature_sharpens_what_is_drawn_and_nothing_else(scale, masked):
    logits, heat, uniform, bitmask, masks = random_step(3, scale, torch.float32)
    marginals = marginals_of(logits, heat, uniform, None)
    masks = masks if masked else [[]] * B
    for i, rows in enumerate(masks):
        marginals.restrict(i, guidance(bitmask, rows))
    marginals.mask()
    entropies = marginals.entropies.clone()
    p = probabilities(logits, heat, None, bitmask, masks)
    likeliest = marginals.draws([0.0] * B)
    assert (p.gather(-1, likeliest[..., None])[..., 0] == p.amax(-1)).all()
    mixed = marginals.draws([1.0, 0.5, 0.0])
    assert (mixed[0] == drawn_of(marginals)[0]).all()
    assert (mixed[2] == likeliest[2]).all()
    assert (marginals.entropies == entropies).all()


def test_draws_at_a_temperature_follow_the_sharpened_distribution():
    rng = torch.Generator().manual_seed(0)
    L_, logits = 4000, torch.full((1, 1, SIZE), -30.0)
    logits[0, 0, [5, 9, 600]] = torch.tensor([1.0, 0.0, -0.5])
    uniform = torch.rand(1, L_, generator=rng)
    marginals = marginals_of(logits.expand(1, L_, SIZE).contiguous(), [0.8], uniform, None)
    for temperature in (0.3, 0.7):
        drawn = marginals.draws([temperature])[0]
        expected = (torch.tensor([1.0, 0.0, -0.5]) / 0.8 / temperature).softmax(-1)
        found = torch.stack([(drawn == token).float().mean() for token in (5, 9, 600)])
        assert (found - expected).abs().max() < 5 * (0.25 / L_) ** 0.5  # five standard deviations
