"""A step of decoding in training is one of the engine's."""

import torch
from training.steps import step_of

from dlm import DecodeConfig

B, L, V = 64, 8, 50
CONFIG = DecodeConfig(t_min=0.5, t_max=1.5, entropy_bound=0.1)


def test_sure_places_keep_what_they_say_and_others_become_noise(rng):
    logits = torch.zeros(B, L, V)
    logits[:, ::2, 7] = 60.0
    tokens, _ = step_of(CONFIG)(logits, rng)
    assert (tokens[:, ::2] == 7).all()
    unsure = tokens[:, 1::2]
    assert unsure.unique().numel() > 0.9 * V
    assert (unsure == 7).float().mean() < 0.1


def test_what_is_kept_is_drawn(rng):
    """The surest place is always kept, and here it says one of two tokens."""
    logits = torch.zeros(B, L, V)
    logits[:, 3, [11, 12]] = 60.0
    tokens, _ = step_of(CONFIG)(logits, rng)
    assert set(tokens[:, 3].tolist()) == {11, 12}


def test_each_canvas_has_a_temperature_of_the_schedule(rng):
    logits = torch.zeros(B, L, V)
    logits[..., 0] = 1.0
    _, probabilities = step_of(CONFIG)(logits, rng)
    heat = 1 / (probabilities[..., 0].log() - probabilities[..., 1].log())
    torch.testing.assert_close(heat, heat[:, :1].expand(B, L), rtol=1e-3, atol=1e-3)
    assert 0.5 <= heat.min() < 0.6
    assert 1.4 < heat.max() <= 1.5 + 1e-3
