"""Conversion of a DiffusionGemma's weights: exact where the mathematics is, else near."""

import copy
from typing import cast

import pytest
import torch
import train_masked
from training import batches, conversion, masked, steps
from training.batches import BatchSource
from training.objective import TrainingBatch

from dlm.models import DiffusionGemma, checkpoint
from dlm.models.families import BUILT_IN


@pytest.fixture(scope="module")
def model():
    model = cast(DiffusionGemma, checkpoint.load(BUILT_IN))
    steps.prepare(model, compiled=False)
    return model


@pytest.fixture
def network():
    torch.manual_seed(0)
    return train_masked.initialised().eval()


@torch.no_grad()
def test_layers_have_the_states_of_the_model_past_its_window_too(model, rng):
    """The last canvases see other tokens than a window from each of their positions would have."""
    model = copy.deepcopy(model)
    for layer in model.layers:
        layer.encoder_scalar.fill_(0.9)
        layer.layer_scalar.fill_(1.1)
    tokens = torch.randint(5, model.vocab_size, (1, 300), generator=rng)
    canvases = torch.randint(5, model.vocab_size, (1, 3, model.canvas_length), generator=rng)
    batch = TrainingBatch(
        tokens=tokens,
        lengths=torch.tensor([300]),
        answers=torch.tensor([8]),
        canvases=canvases,
        starts=torch.tensor([[10, 262, 300]]),
        given=torch.zeros(1, 300, dtype=torch.bool),
        weights=torch.ones(1),
    )
    read = conversion.pass_input(batch, canvases)
    x = model.embed(read.tokens)
    x = torch.cat((x[:, :300], model.self_conditioning.post_norm(x[:, 300:])), 1)
    for index in range(len(model.layers)):
        _, x = conversion.run_layer(model, index, x, read)
    states = model.norm(x)[0]
    encoded = model.encode([tokens[0].tolist()], model.new_cache(1), [0])
    torch.testing.assert_close(states[:300], encoded, rtol=1e-4, atol=1e-4)
    of_canvases = model.logits(states[300:]).unflatten(0, (3, -1))
    for k, start in enumerate(batch.starts[0].tolist()):
        cache = model.new_cache(1)
        model.encode([tokens[0, :start].tolist()], cache, [0])
        logits = model.denoise(canvases[:, k], model.no_soft_embedding()[None], cache, [0])
        torch.testing.assert_close(of_canvases[k], logits[0], rtol=1e-4, atol=1e-4)


def products(q, k, frequencies, positions):
    """Return the products of queries with keys at all pairs of positions, rotated."""
    angle = positions[:, None] * torch.cat((frequencies, frequencies))
    turned = (
        x * angle.cos() + torch.cat((-x[..., half:], x[..., :half]), -1) * angle.sin()
        for x, half in ((q, len(frequencies)), (k, len(frequencies)))
    )
    left, right = turned
    return left @ right.T


@torch.no_grad()
@pytest.mark.parametrize("index", [0, 1])  # a layer of each kind
def test_folded_heads_of_a_token_have_the_products_and_values_of_the_source(
    model, network, index, rng
):
    """One token's mean inverse size is its own, pairs move to where the angles are theirs, and slow
    pairs stand still."""
    source, to = model.layers[index].self_attn, network.model.layers[index].self_attn
    d, D = source.head_dim, to.head_dim
    turns = conversion.frequencies_of(model, index)
    turns = turns.where(turns >= conversion.SLOW, 0.0)
    frequencies = torch.cat((turns[turns > 0], torch.zeros(D // 2)))[: D // 2]
    normed = torch.randn(1, model.config.hidden_size, generator=rng)
    conversion.fold_heads(source, to, normed, turns, frequencies)
    values = source.k_proj if source.v_proj is None else source.v_proj
    q, k = (
        norm(linear(normed).view(-1, d))
        for norm, linear in ((source.q_norm, source.q_proj), (source.k_norm, source.k_proj))
    )
    queries, keys, contents = (
        linear(normed).view(-1, D) for linear in (to.q_proj, to.k_proj, to.v_proj)
    )
    torch.testing.assert_close(contents[:, :d], source.v_norm(values(normed).view(-1, d)))
    for apart in (0, 1, 30):
        for head in range(len(q)):
            expected, actual = (
                products(a[head][None].expand(2, -1), b[head // 2][None].expand(2, -1), f, at)
                for at in [torch.tensor([5.0, 5.0 + apart])]
                for a, b, f in ((q, k, turns), (queries, keys, frequencies))
            )
            torch.testing.assert_close(actual * D**-0.5, expected, rtol=1e-3, atol=1e-3)


def test_pairs_move_to_the_nearest_free_frequency_and_slow_ones_stand_still():
    source = torch.tensor([1.0, 0.5, 0.45, 1e-4])
    turning, standing = conversion.places(source, torch.tensor([1.0, 0.5, 0.1, 0.0, 0.0]))
    assert turning.of.tolist() == [0, 1, 2, 4, 5, 6]
    assert turning.to.tolist() == [0, 1, 2, 5, 6, 7]
    assert standing.of.tolist() == [3, 7]
    assert standing.to.tolist() == [3, 4, 8, 9]


def test_more_pairs_that_turn_than_places_are_refused():
    message = "a place of at least 0.005 radians a position for each of 3 pairs that turn, got 2"
    with pytest.raises(ValueError, match=message):
        conversion.places(torch.tensor([1.0, 0.5, 0.4, 0.0]), torch.tensor([1.0, 0.1, 0.001]))


def test_fewer_directions_have_the_same_products_where_the_others_are_empty(rng):
    normed = torch.randn(40, 8, generator=rng)
    q, k = torch.randn(2, 6, 8, generator=rng), torch.randn(6, 8, generator=rng)
    k[3:] = k[:3]  # three directions
    queries, keys = conversion.correlated(q, k, normed, 3)
    assert keys.shape == (3, 8)
    expected = (normed @ q.mT) @ (normed @ k.T).T
    actual = (normed @ queries.mT) @ (normed @ keys.T).T
    torch.testing.assert_close(actual, expected, rtol=1e-2, atol=1e-2)
    one, _ = conversion.correlated(q, k, normed, 1)
    assert one.shape == (2, 1, 8)


def test_a_linear_map_is_found_again(rng):
    matrix, features = torch.randn(5, 7, generator=rng), torch.randn(400, 7, generator=rng)
    torch.testing.assert_close(
        conversion.fitted(features, features @ matrix.T), matrix, rtol=5e-3, atol=5e-3
    )


@torch.no_grad()
def test_the_neurons_that_contribute_most_stay(model, network, rng):
    normed = torch.randn(50, model.config.hidden_size, generator=rng)
    source, mlp = copy.deepcopy(model.layers[2].mlp), network.model.layers[2].mlp
    kept = torch.randperm(source.down_proj.in_features, generator=rng)[: len(mlp.gate_proj.weight)]
    kept = kept.sort().values
    loud = torch.zeros_like(source.down_proj.weight)
    loud[:, kept] = source.down_proj.weight[:, kept]
    source.down_proj.weight.copy_(loud)
    conversion.keep_neurons(source, mlp, normed)
    mlp.down_proj.weight.copy_(loud[:, kept])
    expected = source(normed)
    assert (mlp(normed) - expected).norm() < 0.05 * expected.norm()


@torch.no_grad()
def test_a_converted_network_predicts_the_lessons_that_it_was_measured_on(model, network):
    """Nothing is trained, and random weights have 7 nats."""
    source = BatchSource(directory=BUILT_IN, seed=3, size=4, plain=True)
    batch = max(batches.shelf(source, 0, 0.0), key=lambda batch: batch.answered.sum())
    losses = []
    for change in (lambda *_: None, conversion.convert):
        change(model, network, batch, train_masked.MASK)
        rng = torch.Generator().manual_seed(1)
        losses.append(masked.loss(network, batch, train_masked.MASK, rng))
    before, after = losses
    assert min(before.next_token, before.diffusion) > 7
    assert after.next_token < 3
    assert after.diffusion < 4
