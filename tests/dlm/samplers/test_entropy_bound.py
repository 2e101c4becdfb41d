"""Each function against the transformers class that it restates, on random inputs."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.diffusion_gemma import generation_diffusion_gemma as reference

from dlm.canvas import Progress
from dlm.grammar import Guidance
from dlm.request import Stats
from dlm.samplers import EntropyBound
from dlm.samplers.entropy_bound import surest

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
    ours = logits / EntropyBound(max_steps=steps).temperature(steps - remaining)
    torch.testing.assert_close(ours, schedule(None, logits, cur_step=remaining))


def test_temperature_stays_at_the_last_step_s_when_steps_have_run_out():
    sampler = EntropyBound(max_steps=24)
    last = sampler.temperature(23)
    assert sampler.temperature(24) == sampler.temperature(29) == last


def entropy(logits):
    """Nats, of `logits [..., V]`."""
    return torch.distributions.Categorical(logits=logits).entropy()


@given(LOGITS, st.sampled_from([1e-6, 0.1, 1.0, 5.0]))
def test_accept_and_renoise_are_the_reference_sampler_s(logits, bound):
    B, L, V = logits.shape
    sampler = reference.EntropyBoundSampler(
        reference.EntropyBoundSamplerConfig(entropy_bound=bound), L, V, max_denoising_steps=1
    )
    current, drawn, noise = (torch.full((B, L), fill) for fill in (1, 2, 3))
    sampler.initialize_canvas = lambda batch, device: noise
    kept = sampler.accept_canvas(current, drawn, logits, cur_step=1)
    expected = sampler.renoise_canvas(kept, cur_step=1)

    accepted = surest(entropy(logits), bound)

    # Entropies differ in the last bits: where the running sum meets the bound, so may the sets.
    cost = entropy(logits).sort(-1).values
    close = ((cost.cumsum(-1) - cost - bound).abs() < 1e-4).any()
    if not close:
        kept = torch.where(accepted, drawn, -1)
        rngs = [torch.Generator().manual_seed(i) for i in range(B)]
        found = EntropyBound().next(current, kept, rngs, V)
        for i, row in enumerate(found):
            again = torch.Generator().manual_seed(i)
            noisy = torch.randint(V, (L,), generator=again)
            assert torch.equal(row, torch.where(expected[i] == 3, noisy, expected[i]))
        assert torch.equal(accepted, sampler.accepted_token_mask)


def test_accept_buys_the_surest_positions():
    kept = surest(torch.tensor([0.30, 0.04, 0.05, 0.90]), bound=0.1)
    assert kept.tolist() == [True, True, True, False]  # 0.30 is free: surer ones cost 0.09


@given(st.lists(st.floats(0, 12, width=32), min_size=1, max_size=20))
def test_accept_always_keeps_at_least_one(costs):
    assert surest(torch.tensor(costs), bound=1e-9).any()


def passes(steps, stable):
    return Progress(stats=Stats(), steps=steps, stable=stable)


GUIDANCE = Guidance(guess=[], bitmask=None, rows=[], suspect=0, repaired=False, stop=0, scored=0)


@given(st.lists(LOGITS, min_size=1, max_size=1), st.integers(1, 4))
def test_settled_is_the_reference_criterion(drawn, repeats):
    """Equal logits several times, then others: "stable" and "confident" mean the same as there."""
    sampler = EntropyBound(max_steps=99)
    logits = drawn[0]
    for scale in (1.0, 60.0):
        scaled = logits * scale
        ours, theirs, guess = [], [], None
        stopping = reference.StableAndConfidentStoppingCriteria(1, 0.005)
        for _ in range(repeats):
            argmax = scaled.argmax(-1)
            theirs.append(stopping(argmax, scaled).tolist())
            mean = entropy(scaled).mean(-1)
            stable = guess is not None and (guess == argmax).all(-1)
            ours.append(
                [
                    sampler.settled(
                        passes(1, stable=bool(guess is not None and stable[i])),
                        GUIDANCE,
                        mean[i].item(),
                    )
                    for i in range(len(mean))
                ]
            )
            guess = argmax
        assert ours == theirs
