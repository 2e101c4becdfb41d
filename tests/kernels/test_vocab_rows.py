"""Results of the vocabulary pass, packed into one tensor; and heated logits."""

import pytest
import torch
from random_rows import random_logits

from dlm.kernels.vocab import vocab_pass
from dlm.kernels.vocab_rows import VocabPass, heated


def test_packed_results_are_unpacked_to_the_same_bits(rng):
    """One tensor holds all of them, to be copied from a GPU at once."""
    found = vocab_pass(random_logits(5, 900, torch.float32, rng), torch.ones(5), torch.rand(5), k=7)

    packed = found.packed()

    assert (packed.shape, packed.dtype) == ((5, 6 + 2 * 7), torch.int32)
    for one, again in zip(found, VocabPass.unpacked(packed), strict=True):
        assert one.dtype == again.dtype
        assert torch.equal(one, again)


def test_the_result_of_a_certain_token_is_that_of_a_pass():
    """The pass is over rows with a logit of 0 and others of -inf."""
    tokens = torch.tensor([3, 0, 39])
    logits = torch.full((3, 40), -torch.inf).index_put((torch.arange(3), tokens), torch.zeros(3))

    found = vocab_pass(logits, torch.full((3,), 2.0), torch.rand(3), k=5)

    for one, other in zip(VocabPass.certain(tokens, 5), found, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_named_rows_have_the_results_of_certain_tokens_and_no_others_change(rng):
    logits = random_logits(6, 40, torch.float32, rng)
    logits[0], logits[1] = -torch.inf, 0.0  # lists of no token, and of too many
    logits[2, 7] = 200.0  # of one
    results = vocab_pass(logits, torch.ones(6), torch.rand(6), threshold=1e-6, k=30)
    assert results.above[:3].tolist() == [0, 31, 1]
    assert all(results.above[3:] > 1)
    before = VocabPass(*(column.clone() for column in results))
    rows, others = torch.tensor([3, 0, 2, 1]), torch.tensor([4, 5])
    tokens = torch.tensor([39, 0, 3, 39])

    results.name_(rows, tokens)

    for column, same, named in zip(results, before, VocabPass.certain(tokens, 30), strict=True):
        assert torch.equal(column[rows], named)
        assert torch.equal(column[others], same[others])


@pytest.mark.parametrize("softcap", [None, 30.0])
def test_heated_logits_are_those_of_the_pass(softcap, rng):
    logits = random_logits(6, 700, torch.bfloat16, rng)
    inverse = torch.rand(6, generator=rng) * 2 + 0.5
    expected = logits.double()
    expected = expected if softcap is None else softcap * torch.tanh(expected / softcap)
    expected = expected.masked_fill(logits.isneginf(), -torch.inf) * inverse.double()[:, None]

    x = heated(logits, inverse, softcap)

    torch.testing.assert_close(x.double(), expected, atol=1e-4, rtol=1e-6)
    found = vocab_pass(logits, inverse, torch.zeros(6), softcap=softcap)
    torch.testing.assert_close(x.logsumexp(-1), found.lse)


def test_a_forbidden_logit_stays_so_beside_a_nan(rng):
    logits = torch.randn(2, 40, generator=rng)
    logits[0, 3], logits[1, 5:] = torch.nan, -torch.inf

    assert heated(logits, torch.ones(2), 30.0)[1, 5:].isneginf().all()


def test_a_heated_logit_has_the_same_bits_at_any_place_of_a_tensor_of_any_size(rng):
    row = 9 * torch.randn(1, 600, generator=rng)
    whole = heated(row, torch.ones(1), 30.0)
    for size in range(1, 600, 7):
        assert torch.equal(heated(row[:, -size:], torch.ones(1), 30.0), whole[:, -size:])
