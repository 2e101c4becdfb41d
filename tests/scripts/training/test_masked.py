"""The objective of masked models: one pass over tokens and canvases is the passes of decoding."""

from dataclasses import replace

import pytest
import torch
import train_masked
from training import masked
from training.objective import TrainingBatch

CANVAS = 6


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(3)
    return train_masked.initialised().double().eval()


@pytest.fixture
def batch(rng):
    """Two samples of unequal lengths, with canvases early, late and past the end."""
    tokens = torch.randint(5, 900, (2, 30), generator=rng)
    canvases = torch.randint(5, 900, (2, 2, CANVAS), generator=rng)
    return TrainingBatch(
        tokens=tokens,
        lengths=torch.tensor([30, 21]),
        answers=torch.tensor([4, 9]),
        canvases=canvases,
        starts=torch.tensor([[4, 28], [9, 15]]),
        given=torch.zeros(2, 30, dtype=torch.bool),
        weights=torch.ones(2),
    )


def alone(network, tokens, start):
    """Return states of one canvas after the clean tokens before it, which do not see it."""
    N = len(tokens)
    mask = torch.ones(N, N, dtype=torch.bool).tril()
    mask[start:, start:] = True
    return masked.run(network, tokens[None], torch.arange(N)[None], mask[None, None])[0]


@torch.no_grad()
def test_canvases_in_one_pass_have_the_states_of_each_alone(network, batch):
    T = batch.tokens.shape[1]
    column = torch.arange(T).expand_as(batch.tokens)
    tokens = torch.cat((batch.tokens, batch.canvases.flatten(1)), 1)
    positions = torch.cat((column, batch.columns.flatten(1)), 1)
    states = masked.run(network, tokens, positions, masked.seen(batch))
    for b in range(2):
        for k, start in enumerate(batch.starts[b].tolist()):
            expected = alone(
                network, torch.cat((batch.tokens[b, :start], batch.canvases[b, k])), start
            )
            at = slice(T + k * CANVAS, T + (k + 1) * CANVAS)
            torch.testing.assert_close(states[b, at], expected[start:])


def test_clean_tokens_see_no_canvas_and_masks_alone_are_scored(network, batch):
    other = replace(batch, canvases=batch.canvases + 1)
    losses = [
        masked.loss(network, each, train_masked.MASK, torch.Generator().manual_seed(1))
        for each in (batch, other)
    ]
    assert torch.equal(losses[0].next_token, losses[1].next_token)
    assert not torch.equal(losses[0].diffusion, losses[1].diffusion)
    losses[0].total.backward()
    gradient = network.model.embed_tokens.weight.grad
    assert gradient[train_masked.MASK].abs().sum() > 0


def test_rare_kinds_of_masks_weigh_as_much_as_frequent_ones():
    weights = masked.evened(torch.tensor([5, 0, 5, 5, 2, 5, 0, 5]))
    assert weights.mean().item() == pytest.approx(1)
    torch.testing.assert_close(weights[[1, 4, 6]], torch.tensor([4, 8, 4]) / 3)
    torch.testing.assert_close(weights[[0, 2, 3, 5, 7]], torch.full((5,), 8 / 15))


def test_tokens_that_a_grammar_gives_are_not_masked(network, batch, monkeypatch):
    seen, run = [], masked.run
    monkeypatch.setattr(masked, "noise_rates", lambda unsure, rng: torch.ones_like(unsure))
    monkeypatch.setattr(masked, "run", lambda *args: seen.append(args[1]) or run(*args))
    for given in (torch.zeros_like(batch.given), torch.ones_like(batch.given)):
        one = replace(batch, given=given)
        masked.loss(network, one, train_masked.MASK, torch.Generator().manual_seed(1))
    nothing, everything = (tokens[:, 30:].unflatten(1, (2, CANVAS)) for tokens in seen[1::2])
    assert (nothing == train_masked.MASK).all()
    assert torch.equal(everything[0, 0], batch.canvases[0, 0])
    assert (everything[0, 1, 2:] == train_masked.MASK).all()  # past the last token
