"""The training objective, against passes of `encode` and `denoise` for each sample and canvas."""

import copy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from training import objective
from training.objective import TrainingBatch

# fp32 in another order of sums, as between ours and transformers; the packed masks are wider.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture
def model(pair):
    return copy.deepcopy(pair.ours).requires_grad_(True).train()


def batch_of(tokens, canvases, starts, answer: int) -> TrainingBatch:
    """Return samples of one length, whose answers begin at `answer`."""
    B, T = tokens.shape
    return TrainingBatch(
        tokens=tokens,
        lengths=torch.full((B,), T),
        answers=torch.full((B,), answer),
        canvases=canvases,
        starts=starts,
        given=torch.zeros(B, T, dtype=torch.bool),
        weights=torch.ones(B),
    )


@pytest.fixture
def batch(reference, rng) -> TrainingBatch:
    """Two samples of unequal lengths; canvases early, late, overlapping and past the end."""
    tokens, canvases = reference.draw(rng, 2, 30), reference.draw(rng, 2, 3, reference.CANVAS)
    whole = batch_of(tokens, canvases, torch.tensor([[4, 12, 28], [9, 17, 10]]), answer=4)
    return replace(whole, lengths=torch.tensor([30, 21]), answers=torch.tensor([4, 9]))


@pytest.fixture
def noisy(reference, rng):
    return reference.draw(rng, 2, 3, reference.CANVAS)


@pytest.fixture
def belief(reference, rng):
    return torch.randn(2, 3, reference.CANVAS, reference.HIDDEN, generator=rng)


def states(model, batch, noisy, belief):
    """Return states of the clean tokens and of the canvases, without gradient."""
    layout = objective._Layout(model, batch)
    with torch.no_grad():
        tokens, memory = layout.encoded()
        return tokens, layout.denoised(noisy, belief, memory)


def step(logits, rng):
    """Return the next canvas and probabilities of a decoder that accepts every other position."""
    noise = torch.randint(logits.shape[-1], logits.shape[:-1], generator=rng)
    even = torch.arange(logits.shape[-2]) % 2 == 0
    return torch.where(even, logits.argmax(-1), noise), (2 * logits).softmax(-1)


def denoised(model, batch, noisy, belief):
    """Return logits `[B, K, L, V]`, each canvas denoised alone after the tokens before it."""
    rows = []
    for b in range(len(noisy)):
        for k, start in enumerate(batch.starts[b].tolist()):
            cache = model.new_cache(1)
            model.encode([batch.tokens[b, :start].tolist()], cache, [0])
            logits = model.denoise(noisy[b, k, None], belief[b, k, None], cache, [0])
            rows.append(model.softcapped(logits))
    return torch.cat(rows).unflatten(0, noisy.shape[:2]).clone()


def test_canvases_in_one_pass_have_the_logits_of_canvases_denoised_alone(
    pair, batch, noisy, belief
):
    """A canvas sees the tokens before it and all of itself, and nothing else."""
    _, canvases = states(pair.ours, batch, noisy, belief)
    expected = denoised(pair.ours, batch, noisy, belief)
    actual = pair.ours.softcapped(pair.ours.logits(canvases))
    torch.testing.assert_close(actual, expected, **CLOSE)


def test_tokens_in_one_pass_have_the_states_of_tokens_encoded_alone(pair, batch, noisy, belief):
    """A token sees no later token, no canvas and no other sample."""
    tokens, _ = states(pair.ours, batch, noisy, belief)
    for b, length in enumerate(batch.lengths.tolist()):
        row = batch.tokens[b, :length].tolist()
        expected = pair.ours.encode([row], pair.ours.new_cache(1), [0])
        torch.testing.assert_close(tokens[b, :length], expected, **CLOSE)


@pytest.fixture
def passes(monkeypatch):
    """Return the noisy canvases and soft embeddings of each pass of `loss`."""
    seen = []
    original = objective._Layout.denoised

    def spy(self, noisy, belief, memory):
        seen.append((noisy, belief))
        return original(self, noisy, belief, memory)

    monkeypatch.setattr(objective._Layout, "denoised", spy)
    return seen


def test_the_loss_is_the_cross_entropy_of_logits_of_each_sample_alone(
    pair, batch, reference, rng, passes
):
    loss = objective.loss(pair.ours, batch, 0, step, rng)
    [(noisy, belief)] = passes
    assert not belief.any()
    logits = denoised(pair.ours, batch, noisy, belief)
    diffusion = F.cross_entropy(logits.flatten(0, 2), batch.canvases.flatten())
    torch.testing.assert_close(loss.diffusion, diffusion, **CLOSE)

    logits, targets = [], []
    for row, length, answer in zip(batch.tokens, batch.lengths, batch.answers, strict=True):
        encoded = pair.ours.encode([row[:length].tolist()], pair.ours.new_cache(1), [0])
        logits.append(pair.ours.softcapped(pair.ours.logits(encoded[answer - 1 : length - 1])))
        targets.append(row[answer:length])
    next_token = F.cross_entropy(torch.cat(logits).clone(), torch.cat(targets))
    torch.testing.assert_close(loss.next_token, next_token, **CLOSE)


@pytest.mark.parametrize("steps", [1, 2])
def test_canvases_are_scored_at_every_step_of_decoding(pair, reference, rng, passes, steps):
    B, K = 2, 4
    tokens, canvases = reference.draw(rng, B, 20), reference.draw(rng, B, K, reference.CANVAS)
    batch = batch_of(tokens, canvases, torch.randint(4, 20, (B, K), generator=rng), answer=4)
    loss = objective.loss(pair.ours, batch, steps, step, rng)
    assert len(passes) == steps + 1
    assert not passes[0][1].any()

    embedding = pair.ours.embed_tokens.weight * reference.HIDDEN**0.5
    logits_of_passes = [denoised(pair.ours, batch, *each) for each in passes]
    for logits, (after, expected) in zip(logits_of_passes[:-1], passes[1:], strict=True):
        mean = (2 * logits).softmax(-1) @ embedding
        torch.testing.assert_close(expected, mean, **CLOSE)
        assert not expected.requires_grad
        assert torch.equal(after[..., ::2], logits.argmax(-1)[..., ::2])
    wanted = batch.canvases.flatten()
    entropies = [F.cross_entropy(logits.flatten(0, 2), wanted) for logits in logits_of_passes]
    torch.testing.assert_close(loss.diffusion, torch.stack(entropies).mean(), **CLOSE)


def test_given_tokens_are_revealed_after_right_ones():
    canvases = torch.arange(8).expand(1, 4, 8)
    given = torch.tensor([0, 1, 1, 0, 0, 1, 1, 0]).bool().expand(1, 4, 8)
    wrong = torch.zeros(1, 4, 8, dtype=torch.bool)
    wrong[0, 0, [1, 2, 5, 7]] = True  # only the last is neither right nor given
    wrong[0, 1, [1, 3, 6]] = True  # the one at 3 is neither
    wrong[0, 2, [0, 2, 5]] = True  # the first of all is neither
    noisy = torch.where(wrong, 9, canvases)
    left = [[7], [3, 6], [0, 2, 5], []]
    for canvas, places in zip(objective.reveal_given(noisy, canvases, given)[0], left, strict=True):
        assert (canvas == 9).nonzero()[:, 0].tolist() == places


def test_given_tokens_are_not_scored_and_are_revealed_at_every_pass(
    model, batch, passes, monkeypatch
):
    counted, balanced = [], objective.balanced

    def spy(entropies, kinds, weights):
        counted.append(weights)
        return balanced(entropies, kinds, weights)

    monkeypatch.setattr(objective, "balanced", spy)
    given = torch.zeros_like(batch.given)
    given[:, 12:18] = True
    batch = replace(batch, given=given)
    places = objective.at_canvases(given, batch)
    assert 0 < places.sum() < places.numel()
    objective.loss(model, batch, 2, step, torch.Generator().manual_seed(3))
    assert len(passes) == 3
    for noisy, _ in passes:
        assert torch.equal(objective.reveal_given(noisy, batch.canvases, places), noisy)
    of_canvases, of_tokens = counted
    assert torch.equal(of_canvases, (~places).float().flatten().repeat(3))
    assert len(of_tokens) == batch.answered.sum() == 26 + 12 - 2 * 6
    assert torch.equal(objective.unsure(model, batch) > 0, batch.answered)


def test_places_are_weighted_by_the_inverse_mean_of_their_kind():
    entropies = torch.tensor([0.0, 0.2, 3.0, 1.0, 2.0]).requires_grad_(True)
    total = objective.balanced(entropies, torch.tensor([0, 0, 4, 4, 4]), torch.ones(5))
    few, many = 1 / (0.1 + objective.FLOOR), 1 / (2 + objective.FLOOR)
    assert total.item() == pytest.approx((0.2 * few + 6 * many) / 5)
    total.backward()
    expected = torch.tensor([few, few, many, many, many]) / 5
    torch.testing.assert_close(entropies.grad, expected)


def test_a_sample_of_no_weight_does_not_change_the_gradient(model, batch, rng):
    other = batch.tokens.clone()
    other[1, 9:21] = other[1, 9:21].flip(0)
    changed = replace(batch, tokens=other, canvases=batch.canvases.flip(2))
    changed = replace(changed, canvases=torch.stack((batch.canvases[0], changed.canvases[1])))
    for weights, same in (([2.0, 0.0], True), ([1.0, 1.0], False)):
        grads = []
        for each in (batch, changed):
            generator = torch.Generator().manual_seed(0)
            weighted = replace(each, weights=torch.tensor(weights))
            total = objective.loss(model, weighted, 0, step, generator).total
            grads.append(torch.autograd.grad(total, model.layers[0].mlp.down_proj.weight)[0])
        between = F.cosine_similarity(*(grad.flatten() for grad in grads), dim=0)
        assert (between > 0.99) == same


def test_a_function_is_applied_to_each_tensor_of_a_batch(batch):
    some = batch.each(lambda tensor: tensor[torch.tensor([1])])
    for name, part in vars(some).items():
        assert torch.equal(part, getattr(batch, name)[1:])


def test_entropies_of_answers_have_the_mean_of_the_loss(pair, batch, rng):
    unsure = objective.unsure(pair.ours, batch)
    assert torch.equal(unsure > 0, batch.answered)
    assert batch.answered.sum(1).tolist() == [26, 12]
    loss = objective.loss(pair.ours, batch, 0, step, rng)
    torch.testing.assert_close(unsure[batch.answered].mean(), loss.next_token)


def test_clutter_counts_corrupted_positions_just_before():
    corrupt = torch.tensor([[[0, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 0]]]).bool()
    near = objective.NEAR
    expected = [near, 0, 1, near + 2, near + 2, 2, 3, 3, 3, 4, 5, 5, near + 5, near + 4]
    assert objective.clutter(corrupt).flatten().tolist() == expected


def test_each_canvas_is_corrupted_at_a_rate_of_its_own(pair, reference, rng, passes):
    """In 9 % of canvases, at most 1 of 8 positions changes; at a single rate of .5, in 3.5 %."""
    B, K, L = 64, 4, reference.CANVAS
    tokens, canvases = reference.draw(rng, B, 2 + L), reference.draw(rng, B, K, L)
    batch = batch_of(tokens, canvases, torch.full((B, K), 2), answer=2)
    with torch.no_grad():
        objective.loss(pair.ours, batch, 0, step, rng)
    [(noisy, _)] = passes
    different = noisy != batch.canvases
    counts = different.sum(-1).flatten()
    assert (counts <= 1).float().mean() > 0.06
    assert (counts >= L - 1).float().mean() > 0.1
    assert noisy[different].unique().numel() == reference.VOCAB


def test_the_same_seed_gives_the_same_loss(pair, batch):
    def total(seed):
        rng = torch.Generator().manual_seed(seed)
        return objective.loss(pair.ours, batch, 1, step, rng).diffusion.item()

    assert total(1) == total(1) != total(2)


@pytest.mark.parametrize("autocast", [False, True])
def test_gradient_reaches_every_parameter(model, batch, rng, autocast):
    """Autocast must not use weights that it cached in the first pass, which has no gradient."""
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = objective.loss(model, batch, 1, step, rng)
    loss.total.backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_a_few_steps_halve_both_losses(model, batch):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    seen = []
    for _ in range(12):
        loss = objective.loss(model, batch, 0, step, torch.Generator().manual_seed(0))
        seen.append((loss.diffusion.item(), loss.next_token.item()))
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
    assert all(last < first / 2 for first, last in zip(seen[0], seen[-1], strict=True))


def test_batches_of_shapes_that_do_not_agree_are_an_error_under_test(batch):
    """The hook of tests/conftest.py checks annotated shapes."""
    with pytest.raises(Exception, match="starts"):
        replace(batch, starts=batch.starts[:, :2])


def test_noise_of_most_canvases_rises_from_left_to_right(rng):
    rates = objective.noise_rates(torch.zeros(200, 2, 32), rng).flatten(0, 1)
    assert (rates.diff(dim=-1) >= 0).all()
    assert ((rates >= objective.LEAST_NOISE) & (rates <= 1)).all()
    even = (rates == rates[:, :1]).all(-1)
    assert 0.2 < even.float().mean() < 0.45
    assert ((rates[~even, 0] < 0.1) & (rates[~even, -1] > 0.9)).float().mean() > 0.3


def test_noise_rises_at_tokens_of_high_entropy(rng):
    """The rate is a half or more there, and low on the left."""
    unsure = torch.zeros(400, 1, 32)
    unsure[..., 20] = 5.0
    rates = objective.noise_rates(unsure, rng).flatten(0, 1)
    begins = (rates[:, 20] >= 0.5) & (rates[:, 12] < 0.1)
    elsewhere = objective.ANYWHERE * 31 / (objective.ANYWHERE * 31 + objective.UNSURE)
    assert begins.float().mean() > objective.RISING * (1 - elsewhere) * 0.8
    assert (rates[begins, 31] > 0.9).all()


def test_values_of_tokens_are_gathered_at_the_positions_of_canvases(batch):
    values = torch.arange(30.0).expand(2, 30)
    found = objective.at_canvases(values, batch)
    column = batch.starts[..., None] + torch.arange(batch.canvases.shape[2])
    assert torch.equal(found, torch.where(column < 30, column, 0).float())


def test_some_noise_is_earlier_tokens_and_shifted_tokens_of_the_canvas(rng):
    """Tokens of the canvas are shifted by one or two places; most noise is random."""
    B, K, L = 64, 2, 8
    tokens = torch.arange(100, 120).repeat(B, 1)
    canvases = torch.arange(1000, 1000 + L).repeat(B, K, 1)
    batch = batch_of(tokens, canvases, torch.full((B, K), 10), answer=10)
    noise = objective.noise_tokens(100, batch, rng)
    earlier, own = (noise >= 100) & (noise < 1000), noise >= 1000
    assert noise[earlier].max() < 110  # before the canvas
    assert ((noise - batch.canvases)[own].abs() <= 2).all()
    assert 0.1 < earlier.float().mean() < 0.3
    assert 0.05 < own.float().mean() < 0.2
