"""Rotary embeddings of plain decoders against transformers' Ministral 3, and parts of heads."""

import torch
from plain_decoders import ministral
from transformers import Ministral3Config
from transformers.models.ministral3.modeling_ministral3 import (
    Ministral3RotaryEmbedding,
    get_llama_4_attn_scale,
)

from dlm.kernels.rotary import rotated, turned
from dlm.models.rotary import QueryScale, RotaryEmbedding, Yarn

POSITIONS = torch.tensor([0, 1, 100, 16_383, 16_384, 40_000, 262_143])


def test_angles_are_those_of_transformers_to_the_bit_and_nothing_multiplies_them():
    theirs = Ministral3RotaryEmbedding(Ministral3Config())  # with YaRN, as Ministral 3 8B has it
    rotary = RotaryEmbedding(theta=1e6, dim=128, yarn=Yarn(factor=16.0, original=16_384))
    angles = rotary.angles(POSITIONS)
    cos, sin = theirs(torch.zeros(1), POSITIONS[None])
    assert theirs.attention_scaling == 1.0
    assert torch.equal(torch.cat((angles.cos(),) * 2, -1), cos[0])
    assert torch.equal(torch.cat((angles.sin(),) * 2, -1), sin[0])
    plain = RotaryEmbedding(theta=1e6, dim=128).angles(POSITIONS)
    assert not torch.equal(angles, plain)


def test_queries_are_scaled_from_the_end_of_the_original_context_on():
    scale = QueryScale(beta=0.1, original=16_384).at(POSITIONS)
    expected = get_llama_4_attn_scale(POSITIONS[None], 0.1, 16_384).flatten()
    torch.testing.assert_close(scale, expected, rtol=1e-7, atol=0)
    assert scale[3] == 1.0
    assert scale[4] > 1.06


def test_parity_of_decoders_depends_on_yarn_and_on_the_scale_of_queries(rng):
    """Otherwise tests of decoders would prove nothing about them."""
    tokens = torch.randint(61, (70,), generator=rng).tolist()
    pair = ministral()
    states = pair.states(tokens)
    for name in ("llama_4_scaling_beta", "factor"):
        rope = dict(pair.theirs.config.rope_parameters)
        pair.theirs.config.rope_parameters = {**rope, name: rope[name] / 2}
        pair.theirs.model.rotary_emb = Ministral3RotaryEmbedding(pair.theirs.config)
        assert (pair.states(tokens) - states).abs().max() > 1e-3
        pair.theirs.config.rope_parameters = rope


def test_only_the_first_numbers_of_a_head_turn(rng):
    x = torch.randn(5, 2, 16, generator=rng)
    angles = RotaryEmbedding(theta=100.0, dim=8).angles(torch.arange(5))[:, None]
    cos, sin = (torch.cat((each, each), -1) for each in (angles.cos(), angles.sin()))
    made = turned(x, cos, sin)
    assert torch.equal(made[..., 8:], x[..., 8:])
    assert torch.equal(made[..., :8], rotated(x[..., :8], cos, sin))
    assert not torch.equal(made[1:, :, :8], x[1:, :, :8])
