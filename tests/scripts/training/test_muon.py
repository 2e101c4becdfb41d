"""Muon in single precision, beside torch's own, which computes its update in bf16."""

import pytest
import torch
from training.muon import Muon, orthogonal


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
def test_its_steps_are_those_of_torch(rng, shape):
    """But for the rounding of bf16, a few percent of each step."""
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
