"""Routers and costs of decoders with experts. The layers themselves are in test_block_models.py."""

import pytest
import torch
from block_models import LLADA2, LLaDA2
from published_configs import PUBLISHED

from dlm.models import plan
from dlm.models.layouts import layout_of
from dlm.models.routed import ExpertRouter, Routing

BILLIONS = {"SDAR-4B": 4.41, "SDAR-30B-A3B": 30.53, "LLaDA2.1-mini": 16.26, "LLaDA2.0-flash": 102.9}


@torch.no_grad()
def test_a_token_chooses_the_experts_of_its_best_groups_by_biased_scores(rng):
    """The oracle chooses one token's experts by sorting; weights are the scores without bias."""
    gate = LLaDA2(LLADA2).routed()["gate"]
    gate.weight.data = torch.randn(12, 32, generator=rng)
    gate.expert_bias.data = torch.randn(12, generator=rng)
    sizes = {"experts": 12, "per_token": 3, "groups": 4, "groups_per_token": 2, "scale": 2.5}
    router = ExpertRouter(32, Routing(**sizes, size=24, scores="sigmoid"))
    router.load_state_dict(gate.state_dict())
    x = torch.randn(60, 32, generator=rng)

    weight, expert = router(x)

    oracle = LLaDA2(LLADA2)
    unbiased = ExpertRouter(32, Routing(**sizes, size=24, scores="sigmoid"))
    unbiased.load_state_dict({**gate.state_dict(), "expert_bias": torch.zeros(12)})
    assert not torch.equal(expert, unbiased(x)[1])
    for row, weights, chosen in zip(x, weight, expert, strict=True):
        expected, scores = oracle.chosen(gate, row)
        assert chosen.tolist() == expected
        torch.testing.assert_close(weights, scores[expected] / scores[expected].sum() * 2.5)


@torch.no_grad()
def test_weights_of_a_softmax_are_renormalised_over_the_likeliest_experts(rng):
    router = ExpertRouter(32, Routing(experts=7, per_token=2, size=24))
    router.weight.data = torch.randn(7, 32, generator=rng)
    x = torch.randn(20, 32, generator=rng)

    weight, expert = router(x)

    p = (x.double() @ router.weight.double().T).softmax(-1)
    assert torch.equal(expert, p.argsort(-1, descending=True)[:, :2])
    chosen = p.gather(-1, expert)
    expected = chosen / chosen.sum(-1, keepdim=True)
    torch.testing.assert_close(weight, expected.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weights", ["bf16", "nvfp4"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_are_planned_with_the_parameters_that_they_are_known_for(name, weights):
    layout = layout_of(PUBLISHED[name])
    config = layout.config(PUBLISHED[name])
    costs = layout.unfilled(config, weights).costs
    parameters = costs.parameters()
    assert sum(parameters.values()) / 1e9 == pytest.approx(BILLIONS[name], rel=0.01)
    load = plan.Load(slots=4, context=8192, weights=weights)
    work = costs.step_work(load)
    sizes = costs.weight_bytes()
    assert work["vocabulary"].read > config.vocab_size * config.hidden_size * 2
    if config.routing is None:
        assert "experts" not in work
        bits = {"bf16": 16, "nvfp4": 4.5}[weights]
        mlp = 3 * config.hidden_size * config.intermediate_size * len(config.layers)
        rest = parameters["dense"] - mlp
        assert sizes["dense"] == pytest.approx(mlp * bits / 8 + rest * 2, rel=0.001)
        return
    rows, routing = 4 * config.canvas_length, config.routing
    hit = 1 - (1 - routing.per_token / routing.experts) ** rows
    bits = {"bf16": 16, "nvfp4": 4.5}[weights]
    assert sizes["experts"] == pytest.approx(parameters["experts"] * bits / 8, rel=0.001)
    assert work["experts"].read == pytest.approx(sizes["experts"] * hit)
    per_row = 6 * config.hidden_size * routing.size * routing.per_token
    layers = len(config.layers) - config.dense_layers
    assert work["experts"].operations == pytest.approx(rows * per_row * layers)
