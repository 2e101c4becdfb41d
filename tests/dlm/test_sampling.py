"""Each function against the transformers class that it restates, on random inputs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.diffusion_gemma import generation_diffusion_gemma as reference

from dlm import sampling

LOGITS = st.builds(
    lambda seed, B, L, V, scale: (
        torch.randn(B, L, V, generator=torch.Generator().manual_seed(seed)) * scale
    ),
    st.integers(0, 2**32),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(2, 40),
    st.sampled_from([0.1, 1.0, 5.0, 30.0]),
)


@given(LOGITS, st.integers(1, 50), st.data())
def test_temperature_is_the_reference_schedule(logits, steps, data):
    remaining = data.draw(st.integers(1, steps))
    schedule = reference.LinearTemperatureScheduleLogitsProcessor(0.4, 0.8, steps)
    ours = logits / sampling.temperature(remaining, steps, 0.4, 0.8)
    torch.testing.assert_close(ours, schedule(None, logits, cur_step=remaining))


def test_temperature_stays_at_the_last_step_s_when_steps_have_run_out():
    last = sampling.temperature(1, 24, 0.4, 0.8)
    assert sampling.temperature(0, 24, 0.4, 0.8) == sampling.temperature(-5, 24, 0.4, 0.8) == last


@given(LOGITS)
def test_entropy_is_the_categorical_s(logits):
    expected = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(sampling.entropy(logits), expected, rtol=1e-4, atol=1e-5)


def test_forbidden_tokens_add_no_entropy():
    logits = torch.tensor([[0.0, -torch.inf, 0.0], [-torch.inf, 3.0, -torch.inf]])
    torch.testing.assert_close(sampling.entropy(logits), torch.tensor([2.0, 1.0]).log())


@given(LOGITS, st.sampled_from([1e-6, 0.1, 1.0, 5.0]))
def test_accept_and_renoise_are_the_reference_sampler_s(logits, bound):
    B, L, V = logits.shape
    sampler = reference.EntropyBoundSampler(
        reference.EntropyBoundSamplerConfig(entropy_bound=bound), L, V, max_denoising_steps=1
    )
    current, drawn, noise = (torch.full((B, L), fill) for fill in (-1, -2, -3))
    sampler.initialize_canvas = lambda batch, device: noise
    kept = sampler.accept_canvas(current, drawn, logits, cur_step=1)
    expected = sampler.renoise_canvas(kept, cur_step=1)

    accepted = sampling.accept(sampling.entropy(logits), bound)

    # Entropies differ in the last bits: where the running sum meets the bound, so may the sets.
    cost = sampling.entropy(logits).sort(-1).values
    close = ((cost.cumsum(-1) - cost - bound).abs() < 1e-4).any()
    if not close:
        assert torch.equal(sampling.renoise(noise, accepted, drawn[accepted]), expected)
        assert torch.equal(accepted, sampler.accepted_token_mask)


def test_accept_buys_the_surest_positions():
    kept = sampling.accept(torch.tensor([0.30, 0.04, 0.05, 0.90]), bound=0.1)
    assert kept.tolist() == [True, True, True, False]  # 0.30 is free: surer ones cost 0.09


@given(st.lists(st.floats(0, 12, width=32), min_size=1, max_size=20))
def test_accept_always_keeps_at_least_one(costs):
    assert sampling.accept(torch.tensor(costs), bound=1e-9).any()


@given(st.lists(LOGITS, min_size=1, max_size=1), st.integers(1, 4))
def test_settled_is_the_reference_criterion(drawn, repeats):
    """The same logits several times, then others: stable and confident are what they are there."""
    logits = drawn[0]
    for scale in (1.0, 60.0):
        scaled = logits * scale
        ours, theirs, guess = [], [], None
        stopping = reference.StableAndConfidentStoppingCriteria(1, 0.005)
        for _ in range(repeats):
            argmax = scaled.argmax(-1)
            theirs.append(stopping(argmax, scaled).tolist())
            mean = sampling.entropy(scaled).mean(-1)
            stable = guess is not None and (guess == argmax).all(-1)
            ours.append(
                [
                    sampling.settled(bool(guess is not None and stable[i]), mean[i].item(), 0.005)
                    for i in range(len(mean))
                ]
            )
            guess = argmax
        assert ours == theirs


def test_draw_follows_the_distribution(rng):
    p = torch.tensor([0.7, 0.0, 0.2, 0.1], device=rng.device)
    uniform = torch.rand(40_000, generator=rng, device=rng.device)
    drawn = sampling.draw(p.log().expand(40_000, 4), uniform)
    torch.testing.assert_close(drawn.bincount(minlength=4) / 40_000, p, atol=0.01, rtol=0)


@settings(max_examples=200)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 1e-9, 0.5, 1 - 2**-24, 1.0]))
def test_draw_never_takes_a_forbidden_token(seed, uniform):
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 33, generator=rng)
    logits[torch.rand(3, 33, generator=rng) < 0.9] = -torch.inf
    logits[:, 7] = -20.0
    drawn = sampling.draw(logits, torch.full((3,), uniform))
    assert logits[torch.arange(3), drawn].isfinite().all()


@pytest.mark.parametrize("uniform", [0.0, 0.3, 0.999])
def test_draw_is_the_inverse_of_the_cumulated_mass(uniform):
    logits = torch.tensor([[0.25, 0.25, 0.5]]).log()
    assert sampling.draw(logits, torch.tensor([uniform])).tolist() == [
        0 if uniform < 0.25 else 1 if uniform < 0.5 else 2
    ]
