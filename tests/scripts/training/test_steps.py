"""Samples that a step chooses, networks that grow, a step of decoding, and Muon beside torch's."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from training import directory, steps
from training.batches import tokenizer_of
from training.objective import TrainingBatch
from training.steps import Muon, orthogonal

from dlm.engine import BUILT_IN
from dlm.models import ModelConfig, checkpoint
from dlm.samplers import EntropyBound

B = 12


@pytest.fixture
def pool(rng) -> TrainingBatch:
    """Samples whose first token is their number."""
    tokens = torch.randint(1000, (B, 8), generator=rng)
    tokens[:, 0] = torch.arange(B)
    return TrainingBatch(
        tokens=tokens,
        lengths=torch.full((B,), 8),
        answers=torch.full((B,), 3),
        canvases=torch.randint(1000, (B, 2, 4), generator=rng),
        starts=torch.full((B, 2), 3),
        given=torch.zeros(B, 8, dtype=torch.bool),
        weights=torch.ones(B),
    )


def test_shares_are_proportional_to_scores_up_to_certainty():
    share = steps.shares(torch.tensor([100.0, 9.0, 1.0, 1.0, 1.0, 1.0]), 3)
    expected = [1, 1, 0.25, 0.25, 0.25, 0.25]
    assert share.tolist() == pytest.approx(expected)
    assert steps.shares(torch.tensor([1.0, 2.0, 3.0]), 1).tolist() == pytest.approx(
        [1 / 6, 1 / 3, 1 / 2]
    )


@pytest.mark.parametrize("size", [1, 5, B])
def test_a_step_chooses_the_requested_number_of_different_samples(pool, rng, size):
    for _ in range(50):
        scores = torch.rand(B, generator=rng) ** 4 + 0.01
        batch = steps.chosen(pool, scores, size, 1.0, rng)
        assert batch.tokens[:, 0].unique().numel() == size == len(batch.tokens)
        assert batch.weights.mean().item() == pytest.approx(1)
        rows = batch.tokens[:, 0]
        assert torch.equal(batch.canvases, pool.canvases[rows])


def test_samples_are_chosen_in_proportion_to_their_scores(pool, rng):
    scores = torch.arange(1.0, B + 1)
    drawn = [steps.chosen(pool, scores, 3, 0.0, rng) for _ in range(1000)]
    assert all((batch.weights == 1).all() for batch in drawn)
    count = torch.cat([batch.tokens[:, 0] for batch in drawn]).bincount(minlength=B)
    torch.testing.assert_close(count / 1000, 3 * scores / scores.sum(), rtol=0.1, atol=0.02)


def test_fair_weights_make_up_for_the_choice(pool, rng):
    """Weighted sums over chosen samples are those over all, but for a factor, for any scores."""
    scores = torch.tensor([0.1] * 9 + [2.0] * 3)
    share = steps.shares(scores, 3)
    values = torch.rand(B, generator=rng)
    sums = torch.zeros(2)
    for _ in range(1000):
        batch = steps.chosen(pool, scores, 3, 1.0, rng)
        rows = batch.tokens[:, 0]
        of_share = batch.weights * share[rows]
        torch.testing.assert_close(of_share, of_share[:1].expand(3))
        sums += torch.stack((values[rows] / share[rows], 1 / share[rows])).sum(1)
    assert (sums[0] / sums[1]).item() == pytest.approx(values.mean().item(), rel=0.05)


def test_mistakes_count_at_telling_tokens_only(pool):
    pool = replace(pool, tokens=torch.tensor([[1, 1, 1, 5, 6, 7, 5, 6]] * B))
    telling = torch.zeros(1000, dtype=torch.bool)
    telling[[5, 7]] = True
    unsure = torch.zeros(B, 8)
    unsure[0, 4] = 9.0  # layout
    unsure[1, 3] = 9.0
    unsure[2, [3, 5]] = torch.tensor(2.0).log()
    found = steps.mistakes(unsure, pool, telling) - steps.FLOOR
    assert found[:4].tolist() == pytest.approx([0, 1, 1, 0], abs=1e-3)


def test_tokens_of_words_and_numbers_are_telling_and_those_of_layout_are_not():
    tokenizer, telling = tokenizer_of(BUILT_IN), steps.telling(BUILT_IN)
    assert telling.shape == (len(tokenizer),)

    def tells(text: str) -> list[bool]:
        return telling[tokenizer(text, add_special_tokens=False)["input_ids"]].tolist()

    for text in ("null", "7", "Zurghai"):
        assert all(tells(text))
    for text in ('```json\n{\n  "', '", "'):
        assert not any(tells(text))


@pytest.fixture
def config():
    return json.loads((BUILT_IN / directory.CONFIG).read_text())


def deeper(config, more):
    config = copy.deepcopy(config)
    text = config["text_config"]
    text["num_hidden_layers"] = layers = text["num_hidden_layers"] + more
    text["layer_types"] = kinds = [*(text["layer_types"] * 2)[: layers - 1], "full_attention"]
    full = (i for i, kind in enumerate(kinds) if kind == "full_attention")
    text["per_layer_config"] = {str(i): {"head_dim": 64} for i in full}
    return ModelConfig.from_hf(config)


def wider(config, neurons):
    config = copy.deepcopy(config)
    config["text_config"]["intermediate_size"] += neurons
    return ModelConfig.from_hf(config)


@pytest.mark.parametrize(("change", "more"), [(deeper, 2), (wider, 64)])
def test_a_larger_network_has_the_same_states(config, rng, change, more):
    before = checkpoint.load(BUILT_IN).float()
    after = steps.grown(before, change(config, more)).float()
    assert len(after.layers) == len(before.layers) + 2 * (change is deeper)
    tokens = torch.randint(1000, (20,), generator=rng).tolist()
    states = [model.encode([tokens], model.new_cache(1), [0]) for model in (before, after)]
    torch.testing.assert_close(states[1], states[0])


def test_new_neurons_can_learn(config):
    after = steps.grown(checkpoint.load(BUILT_IN).float(), wider(config, 64)).float()
    for gated in (after.layers[0].mlp, after.self_conditioning):
        assert not gated.down_proj.weight[:, -64:].any()
        for into in (gated.gate_proj, gated.up_proj):
            new, old = into.weight[-64:], into.weight[:-64]
            assert 0.5 < new.std() / old.std() < 2


def test_a_network_cannot_lose_neurons(config):
    with pytest.raises(ValueError, match="neurons cannot become"):
        steps.grown(checkpoint.load(BUILT_IN), wider(config, -64))


def test_a_network_that_does_not_grow_is_the_same(config):
    before = checkpoint.load(BUILT_IN)
    after = steps.grown(before, before.config).state_dict()
    assert all(torch.equal(t, after[n]) for n, t in before.state_dict().items())


@pytest.mark.parametrize("more", [-2, 1])
def test_an_impossible_number_of_layers_is_an_error(config, more):
    before = checkpoint.load(BUILT_IN)
    with pytest.raises(ValueError, match=f"cannot become {len(before.layers) + more}"):
        steps.grown(before, deeper(config, more))


CANVASES, L, V = 64, 8, 50
CONFIG = EntropyBound(t_min=0.5, t_max=1.5, entropy_bound=0.1)


def test_sure_positions_keep_their_tokens_and_others_become_noise(rng):
    logits = torch.zeros(CANVASES, L, V)
    logits[:, ::2, 7] = 60.0
    tokens, _ = steps.step_of(CONFIG)(logits, rng)
    assert (tokens[:, ::2] == 7).all()
    unsure = tokens[:, 1::2]
    assert unsure.unique().numel() > 0.9 * V
    assert (unsure == 7).float().mean() < 0.1


def test_a_kept_token_is_drawn(rng):
    """The surest position is always kept, and here two tokens share its probability."""
    logits = torch.zeros(CANVASES, L, V)
    logits[:, 3, [11, 12]] = 60.0
    tokens, _ = steps.step_of(CONFIG)(logits, rng)
    assert set(tokens[:, 3].tolist()) == {11, 12}


def test_each_canvas_has_a_temperature_of_the_schedule(rng):
    logits = torch.zeros(CANVASES, L, V)
    logits[..., 0] = 1.0
    _, probabilities = steps.step_of(CONFIG)(logits, rng)
    heat = 1 / (probabilities[..., 0].log() - probabilities[..., 1].log())
    torch.testing.assert_close(heat, heat[:, :1].expand(CANVASES, L), rtol=1e-3, atol=1e-3)
    assert 0.5 <= heat.min() < 0.6
    assert 1.4 < heat.max() <= 1.5 + 1e-3


@pytest.mark.parametrize("shape", [(8, 8), (24, 6), (5, 40)])
def test_an_update_has_singular_values_near_one_and_the_directions_of_its_matrix(rng, shape):
    matrix = torch.randn(shape, generator=rng)
    update = orthogonal(matrix)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    found = left.T @ update @ right.T  # diagonal: the same directions
    assert torch.allclose(found, torch.diag(found.diagonal()), atol=1e-3)
    assert ((found.diagonal() > 0.3) & (found.diagonal() < 1.3)).all()
    assert len(values) == min(shape)


@pytest.mark.parametrize("shape", [(16, 16), (32, 8), (8, 32)])
def test_steps_of_muon_are_those_of_torch(rng, shape):
    """Torch computes its updates in bf16, and differs by a few percent of each step."""
    first = torch.randn(shape, generator=rng)
    ours, theirs = (torch.nn.Parameter(first.clone()) for _ in range(2))
    steps = {
        ours: Muon([{"params": [ours], "lr": 0.02}], weight_decay=0.1),
        theirs: torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, adjust_lr_fn="original"),
    }
    for _ in range(4):
        gradient = torch.randn(shape, generator=rng)
        for parameter, optimiser in steps.items():
            parameter.grad = gradient.clone()
            optimiser.step()
    moved = (theirs - first).norm()
    assert (ours - theirs).norm() < 0.05 * moved
    assert moved > 0.01
