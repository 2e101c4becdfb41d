"""Sums over classes of tokens against their definition."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlm.kernels import classes
from dlm.kernels.classes import ClassPass, Members, class_pass, class_pass_reference


def members_of(V: int, count: int, share: float, rng: torch.Generator) -> Members:
    """Some of `V` tokens, in any of `count` classes, not all of which need have one."""
    tokens = (torch.rand(V, generator=rng) < share).nonzero()[:, 0]
    return Members(tokens, torch.randint(count, tokens.shape, generator=rng))


@given(
    n=st.integers(1, 5),
    V=st.sampled_from([1, 33, 700]),
    count=st.sampled_from([1, 4, 90]),
    share=st.sampled_from([0.0, 0.1, 1.0]),
    scale=st.sampled_from([0.1, 3.0, 40.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    softcap=st.sampled_from([None, 30.0]),
    seed=st.integers(0, 2**32),
)
def test_the_pass_is_its_reference(n, V, count, share, scale, dtype, softcap, seed):
    """A logit is off by half an ulp of 100 at most, and so is a log of sums of them; of the tokens
    that come so near to the highest, any may be named."""
    rng = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(n, V, generator=rng)).to(dtype)
    logits[torch.rand(n, V, generator=rng) < 0.1] = -torch.inf
    heat = torch.rand(n, generator=rng) * 2 + 0.5
    members = members_of(V, count, share, rng)

    found = class_pass(logits, heat, members, count, softcap)

    expected = class_pass_reference(logits, heat, members, count, softcap)
    for one, other in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(one.double(), other, atol=1e-4, rtol=1e-5)
    assert torch.equal(found.best < 0, expected.best < 0)
    for row, label in (found.best >= 0).nonzero().tolist():
        token = int(found.best[row, label])
        assert members.classes[members.tokens == token].tolist() == [label]
        alone = Members(torch.tensor([token]), torch.tensor([label]))
        x = class_pass_reference(logits[row : row + 1], heat[row : row + 1], alone, count, softcap)
        assert x.top[0, label] >= expected.top[row, label] - 1e-4


def test_of_equals_the_lowest_token_is_the_best():
    members = Members(torch.tensor([1, 2, 4]), torch.tensor([0, 0, 0]))
    logits = torch.tensor([[9.0, 1.0, 2.0, 9.0, 2.0]])
    assert class_pass(logits, torch.ones(1), members, 1).best.item() == 2


def test_what_is_packed_is_unpacked(rng):
    members = members_of(50, 6, 0.5, rng)
    found = class_pass(torch.randn(3, 50, generator=rng), torch.ones(3), members, 6)
    packed = found.packed()
    assert (packed.shape, packed.dtype) == ((3, 18), torch.int32)
    for one, again in zip(found, ClassPass.unpacked(packed), strict=True):
        assert torch.equal(one, again)


def test_a_row_comes_out_the_same_whatever_is_beside_it(rng, monkeypatch):
    """Bit for bit, in blocks of any number of rows."""
    members = members_of(400, 9, 0.7, rng)
    logits, heat = 5 * torch.randn(7, 400, generator=rng), torch.rand(7, generator=rng) + 0.5
    whole = class_pass(logits, heat, members, 9, 30.0)
    monkeypatch.setattr(classes, "_CPU_BLOCK", 900)
    blocks = class_pass(logits, heat, members, 9, 30.0)
    alone = class_pass(logits[4:5], heat[4:5], members, 9, 30.0)
    for one, other, row in zip(whole, blocks, alone, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one[4:5], row)


@pytest.mark.gpu
def test_on_a_gpu_it_is_its_reference_too(rng):
    members = members_of(5000, 40, 0.5, rng)
    logits, heat = 5 * torch.randn(9, 5000, generator=rng), torch.rand(9, generator=rng) + 0.5
    there = Members(*(each.cuda() for each in members))
    found = class_pass(logits.cuda(), heat.cuda(), there, 40, 30.0)
    expected = class_pass_reference(logits, heat, members, 40, 30.0)
    for one, other in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(one.cpu().double(), other, atol=1e-4, rtol=1e-5)
