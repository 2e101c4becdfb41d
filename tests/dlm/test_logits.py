"""A canvas's logits, as they are asked about, against the definition."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlm.logits import Logits

SIZE = 3000


def packed(allowed):
    bits = np.zeros(-(-SIZE // 32) * 32, dtype=bool)
    bits[:SIZE] = allowed
    return np.packbits(bits, bitorder="little").view(np.uint32)


@given(
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([0.1, 3.0, 20.0, 500.0]),
    share=st.sampled_from([1.0, 0.5, 0.01, 1 / SIZE]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_candidates_are_the_likeliest_of_what_is_allowed(seed, scale, share, dtype):
    """From a flat row to one where a single token has all of the mass."""
    rng = np.random.default_rng(seed)
    logits = torch.tensor(scale * rng.normal(size=(2, SIZE))).to(dtype)
    allowed = rng.random(SIZE) < share
    allowed[rng.integers(SIZE)] = True
    row = logits[1].double().numpy()
    logp = row - row.max() - math.log(np.exp(row - row.max()).sum())
    best = float(logp[allowed].max())
    scores = Logits(logits, [0, 0])

    found = scores.candidates(1, packed(allowed), 3)

    assert row[scores.best(1, packed(allowed))] == row[allowed].max()
    assert found.mass == pytest.approx(np.exp(logp[allowed]).sum(), rel=1e-4, abs=1e-7)
    tokens = [token for token, _ in found.ranked]
    assert allowed[tokens].all()
    assert len({*tokens}) == len(tokens)
    likeliest = sorted((p for p in logp[allowed] if p > best + math.log(2e-3)), reverse=True)[:3]
    if best < -26:  # nats: beyond what is looked at
        assert len(tokens) == 1
    else:  # those next to the best one may be
        assert len(tokens) >= (len(likeliest) if best > -18 else 1)
    for (token, said), expected in zip(found.ranked, likeliest, strict=False):
        assert logp[token] == pytest.approx(expected)
        assert said == pytest.approx(expected, abs=1e-3) or (said == -math.inf and best < -25)


def test_where_nothing_is_allowed_there_is_no_candidate():
    found = Logits(torch.zeros(1, SIZE), [0]).candidates(0, packed(np.zeros(SIZE, dtype=bool)), 3)
    assert (found.ranked, found.mass) == ([], 0.0)


def test_logits_that_a_model_rules_out_are_no_candidates():
    logits = torch.full((1, SIZE), -torch.inf)
    logits[0, [7, 9]] = torch.tensor([1.0, 2.0])
    found = Logits(logits, [9]).candidates(0, packed(np.ones(SIZE, dtype=bool)), 5)
    assert [token for token, _ in found.ranked] == [9, 7]
    assert found.mass == pytest.approx(1.0)
