"""What the vocabulary pass gives, packed into one tensor; and what a logit counts as."""

import pytest
import torch

from dlm.kernels.vocab import vocab_pass
from dlm.kernels.vocab_rows import VocabPass, heated


def logits_of(n: int, V: int, rng: torch.Generator) -> torch.Tensor:
    """From flat rows to peaked ones, with a tenth of -inf."""
    logits = torch.randn(n, V, generator=rng) * torch.logspace(-1, 1.3, n)[:, None]
    return logits.masked_fill(torch.rand(n, V, generator=rng) < 0.1, -torch.inf)


def test_what_is_packed_is_unpacked(rng):
    """Bit for bit; into one tensor, which is one copy from a GPU."""
    found = vocab_pass(logits_of(5, 900, rng), torch.ones(5), torch.rand(5), k=7)

    packed = found.packed()

    assert (packed.shape, packed.dtype) == ((5, 6 + 2 * 7), torch.int32)
    for one, again in zip(found, VocabPass.unpacked(packed), strict=True):
        assert one.dtype == again.dtype
        assert torch.equal(one, again)


def test_a_row_of_one_token_is_what_a_pass_over_it_would_find():
    """But for its log-sum-exp, which is that of a logit of 0."""
    tokens = torch.tensor([3, 0, 39])
    logits = torch.full((3, 40), -torch.inf).index_put((torch.arange(3), tokens), torch.zeros(3))

    found = vocab_pass(logits, torch.full((3,), 2.0), torch.rand(3), k=5)

    for one, other in zip(VocabPass.certain(tokens, 5), found, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("softcap", [None, 30.0])
def test_a_heated_logit_is_what_the_pass_takes_it_for(softcap, rng):
    logits = logits_of(6, 700, rng).bfloat16()
    inverse = torch.rand(6, generator=rng) * 2 + 0.5
    expected = logits.double()
    expected = expected if softcap is None else softcap * torch.tanh(expected / softcap)
    expected = expected.masked_fill(logits.isneginf(), -torch.inf) * inverse.double()[:, None]

    x = heated(logits, inverse, softcap)

    torch.testing.assert_close(x.double(), expected, atol=1e-4, rtol=1e-6)
    found = vocab_pass(logits, inverse, torch.zeros(6), softcap=softcap)
    torch.testing.assert_close(x.logsumexp(-1), found.lse)


def test_a_nan_beside_it_makes_no_forbidden_logit_count(rng):
    logits = torch.randn(2, 40, generator=rng)
    logits[0, 3], logits[1, 5:] = torch.nan, -torch.inf

    assert heated(logits, torch.ones(2), 30.0)[1, 5:].isneginf().all()


def test_a_heated_logit_is_the_same_whatever_is_beside_it(rng):
    """Bit for bit, wherever in a tensor of whatever size it is."""
    row = 9 * torch.randn(1, 600, generator=rng)
    whole = heated(row, torch.ones(1), 30.0)
    for size in range(1, 600, 7):
        assert torch.equal(heated(row[:, -size:], torch.ones(1), 30.0), whole[:, -size:])
