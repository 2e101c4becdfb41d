"""A network with more layers or neurons begins as what it was."""

import copy
import json
from pathlib import Path

import pytest
import torch
from training import directory, growth

import dlm.models
from dlm.models import ModelConfig, checkpoint

TINY = Path(dlm.models.__file__).parent / "tiny"


def deeper(config, layers):
    config = copy.deepcopy(config)
    text = config["text_config"]
    text["num_hidden_layers"] = layers
    text["layer_types"] = kinds = [*(text["layer_types"] * 2)[: layers - 1], "full_attention"]
    full = (i for i, kind in enumerate(kinds) if kind == "full_attention")
    text["per_layer_config"] = {str(i): {"head_dim": 64} for i in full}
    return ModelConfig.from_hf(config)


@pytest.fixture
def config():
    return json.loads((TINY / directory.CONFIG).read_text())


def test_a_deeper_network_says_the_same(config, rng):
    before = checkpoint.load(TINY).float()
    layers = len(before.config.layers)
    after = growth.grown(before, deeper(config, layers + 2)).float()
    assert len(after.layers) == layers + 2
    tokens = torch.randint(1000, (20,), generator=rng).tolist()
    states = [model.encode([tokens], model.new_cache(1), [0]) for model in (before, after)]
    torch.testing.assert_close(states[1], states[0])


def wider(config, neurons):
    config = copy.deepcopy(config)
    config["text_config"]["intermediate_size"] += neurons
    return ModelConfig.from_hf(config)


def test_a_wider_network_says_the_same_and_can_learn(config, rng):
    before = checkpoint.load(TINY).float()
    after = growth.grown(before, wider(config, 64)).float()
    tokens = torch.randint(1000, (20,), generator=rng).tolist()
    states = [model.encode([tokens], model.new_cache(1), [0]) for model in (before, after)]
    torch.testing.assert_close(states[1], states[0])
    for gated in (after.layers[0].mlp, after.self_conditioning):
        assert not gated.down_proj.weight[:, -64:].any()
        for into in (gated.gate_proj, gated.up_proj):
            new, old = into.weight[-64:], into.weight[:-64]
            assert 0.5 < new.std() / old.std() < 2


def test_a_network_cannot_lose_neurons(config):
    with pytest.raises(ValueError, match="neurons cannot become"):
        growth.grown(checkpoint.load(TINY), wider(config, -64))


def test_a_network_of_the_shapes_that_it_had_is_the_same(config):
    before = checkpoint.load(TINY)
    after = growth.grown(before, before.config)
    assert all(torch.equal(t, after.state_dict()[n]) for n, t in before.state_dict().items())


@pytest.mark.parametrize("more", [-2, 1])
def test_layers_that_do_not_fit_are_an_error(config, more):
    before = checkpoint.load(TINY)
    layers = len(before.config.layers) + more
    with pytest.raises(ValueError, match=f"cannot become {layers}"):
        growth.grown(before, deeper(config, layers))
