"""Floats are compared bit by bit: what is allowed keeps even its NaN's payload."""

import pytest
import torch
import xgrammar
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dlm.kernels.grammar_mask import mask_logits_, mask_logits_reference, mask_logits_triton_

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
VOCABS = [1, 31, 32, 33, 1000, 1536, 4097]  # around the ends of a word and of a kernel's block
IMPLEMENTATIONS = [mask_logits_, mask_logits_triton_]


def zeros(*shape: int, dtype: torch.dtype = torch.int32, device: str = "cpu") -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
def test_the_kernel_equals_the_reference(rows, vocab, dtype, device, rng):
    logits = random_logits(rows, vocab, dtype, rng).to(device)
    bitmask = random_bitmask(3, vocab, rng).to(device)
    named = random_rows(rows, bitmask, vocab, rng)
    expected = mask_logits_reference(logits, bitmask, named)

    assert mask_logits_triton_(logits, bitmask, named) is logits

    assert same_bits(logits, expected)


@given(
    rows=st.integers(0, 8),
    vocab=st.integers(1, 100) | st.sampled_from([1000, 1536, 10_000, 40_000]),
    dtype=st.sampled_from(DTYPES),
    extra=st.sampled_from([0, 1, 37]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=50, deadline=None)
def test_the_cpu_path_equals_the_reference(rows, vocab, dtype, extra, seed):
    rng = torch.Generator().manual_seed(seed)
    padded = random_logits(rows, vocab + extra, dtype, rng)
    bitmask = random_bitmask(5, vocab + 32 * extra, rng)
    bitmask[torch.rand(5, generator=rng) < 0.5] = -1
    named = random_rows(rows, bitmask, vocab, rng)
    expected = padded.clone()
    expected[:, :vocab] = mask_logits_reference(padded[:, :vocab], bitmask, named)

    mask_logits_(padded[:, :vocab], bitmask, named)

    assert same_bits(padded, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocab", VOCABS)
def test_the_bits_mean_what_they_mean_to_xgrammar(vocab, dtype, rng):
    logits = random_logits(5, vocab, dtype, rng)
    bitmask = random_bitmask(5, vocab, rng)
    expected = logits.clone()
    xgrammar.apply_token_bitmask_inplace(expected, bitmask)

    assert same_bits(mask_logits_reference(logits, bitmask, range(5)), expected)
    assert same_bits(mask_logits_(logits, bitmask, range(5)), expected)


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("mask_", IMPLEMENTATIONS)
def test_all_ones_change_nothing_and_all_zeros_leave_nothing(mask_, vocab, device, rng):
    logits = random_logits(4, vocab, torch.bfloat16, rng).to(device)
    before = logits.clone()
    bitmask = torch.full((4, -(-vocab // 32)), -1, dtype=torch.int32, device=device)
    bitmask[1::2] = 0

    mask_(logits, bitmask, range(4))

    assert same_bits(logits[::2], before[::2])
    assert logits[1::2].isneginf().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("mask_", IMPLEMENTATIONS)
def test_memory_around_the_rows_is_left_alone(mask_, vocab, dtype, device, rng):
    padded = random_logits(3, vocab + 77, dtype, rng).to(device)
    before = padded.clone()
    wide = torch.full((3, -(-vocab // 32) + 9), -1, dtype=torch.int32, device=device)
    wide[:, 5:-4] = 0

    mask_(padded[:, 7 : 7 + vocab], wide[:, 5:-4], [0, 2, -vocab])

    padded[2, 7 + vocab - 1] = -torch.inf  # which alone was allowed there
    assert padded[:, 7 : 7 + vocab].isneginf().all()
    assert same_bits(padded[:, :7], before[:, :7])
    assert same_bits(padded[:, 7 + vocab :], before[:, 7 + vocab :])


@pytest.mark.parametrize("mask_", IMPLEMENTATIONS)
def test_words_past_the_vocabulary_are_ignored(mask_, device):
    logits = torch.zeros(1, 33, device=device)
    bitmask = torch.tensor([[-1, 1, 0]], dtype=torch.int32, device=device)

    assert (mask_(logits, bitmask, [0]) == 0).all()


@pytest.mark.parametrize("mask_", IMPLEMENTATIONS)
def test_a_row_that_names_a_token_allows_that_one_alone(mask_, device, rng):
    """Also the last of a word, whose bit is an integer's sign, and the last of all."""
    tokens = [0, 30, 31, 32, 63, 98, 99]
    logits = random_logits(7, 100, torch.float32, rng).to(device)
    before = logits.clone()

    mask_(logits, zeros(0, 4, device=device), [~token for token in tokens])

    for row, token in enumerate(tokens):
        assert same_bits(logits[row, token], before[row, token])
        assert logits[row].isneginf().sum() >= 99


@pytest.mark.parametrize("mask_", IMPLEMENTATIONS)
def test_rows_may_share_a_mask(mask_, device, rng):
    logits = random_logits(4, 100, torch.float32, rng).to(device)
    bitmask = random_bitmask(3, 100, rng).to(device)
    named = [2, 0, 2, 2]
    expected = mask_logits_reference(logits, bitmask[named], range(4))

    assert same_bits(mask_(logits, bitmask, named), expected)


def test_the_kernel_reaches_rows_further_than_an_int32_counts(device):
    stride = 2**30  # elements; 4 GiB of addresses, of which three pages are touched
    flat = torch.empty(2 * stride + 40, dtype=torch.float16, device=device)
    logits = flat.as_strided((3, 40), (stride, 1)).zero_()

    mask_logits_triton_(logits, zeros(1, 2, device=device), [0, 0, 0])

    assert logits.isneginf().all()


@pytest.mark.parametrize("shape", [(0, 40), (3, 0), (0, 0)])
@pytest.mark.parametrize("mask_", IMPLEMENTATIONS)
def test_nothing_to_mask_is_no_error(mask_, shape, device):
    mask_(torch.zeros(shape, device=device), zeros(*shape, device=device), range(shape[0]))


@pytest.mark.parametrize("mask_", IMPLEMENTATIONS)
def test_one_column_is_adjacent_whatever_its_stride(mask_, device):
    logits = torch.zeros(1, 3, device=device).T  # shape (3, 1), strides (1, 3)
    bitmask = torch.tensor([[1, 0, 1]], dtype=torch.int32, device=device).T

    assert mask_(logits, bitmask, [0, 1, 2]).flatten().tolist() == [0, float("-inf"), 0]


@pytest.mark.parametrize(
    ("logits", "bitmask", "rows", "message"),
    [
        ((2, 33), zeros(2, 1), [0, 1], "1 words of 32 bits are too few for 33 tokens: 2 needed"),
        ((2, 33), zeros(3, 2), [0], r"got shapes \[2, 33\] and \[3, 2\], and 1 rows"),
        ((2, 2, 33), zeros(2, 2), [0, 1], r"\[n, V\].*got shapes \[2, 2, 33\] and \[2, 2\]"),
        ((2, 33), zeros(2), [0, 1], r"\[M, W\].*got shapes \[2, 33\] and \[2\]"),
        ((2, 33), zeros(2, 2).T, [0, 1], r"row of bitmask .* got strides \(1, 2\)"),
        ((2, 33), zeros(2, 2, dtype=torch.int64), [0, 1], "int32, got torch.int64"),
        ((2, 33), zeros(2, 2, device="meta"), [0, 1], "on cpu but their bitmask is on meta"),
        ((2, 33), zeros(3, 2), [0, 3], "rows are 0 to 2, or ~token down to -33, got 0 to 3"),
        ((2, 33), zeros(3, 2), [-34, 0], "rows are 0 to 2, or ~token down to -33, got -34 to 0"),
    ],
)
@pytest.mark.parametrize("mask_", IMPLEMENTATIONS)
def test_masks_that_do_not_fit_are_refused(mask_, logits, bitmask, rows, message):
    logits = torch.zeros(logits)
    with pytest.raises(ValueError, match=message):
        mask_(logits, bitmask, rows)

    assert not logits.any()


@pytest.mark.parametrize("mask_", IMPLEMENTATIONS)
def test_logits_with_gaps_within_a_row_are_refused(mask_):
    with pytest.raises(ValueError, match=r"row of logits .* got strides \(66, 2\)"):
        mask_(torch.zeros(2, 66)[:, ::2], zeros(2, 2), [0, 1])


def test_a_cpu_tensor_needs_no_triton(monkeypatch):
    monkeypatch.setattr("dlm.kernels.grammar_mask._mask_logits_kernel", None)

    assert mask_logits_(torch.zeros(1, 40), zeros(1, 2), [0]).isneginf().all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_whole_canvas_on_the_gpu_equals_the_reference(dtype, rng):
    """The masks are on the host, as an engine has them; those in use are sent."""
    logits = random_logits(256, 262_144, dtype, rng).cuda()
    bitmask = random_bitmask(256, 262_144, rng)
    bitmask[::2] = -1
    named = random_rows(256, bitmask, 262_144, rng)
    expected = mask_logits_reference(logits, bitmask.cuda(), named)

    assert same_bits(mask_logits_(logits, bitmask, named), expected)


def random_logits(rows: int, vocab: int, dtype: torch.dtype, rng: torch.Generator) -> Tensor:
    """Normal numbers, with a NaN and an infinity here and there."""
    logits = torch.randn(rows, vocab, generator=rng)
    odd = torch.rand(rows, vocab, generator=rng)
    return logits.masked_fill(odd < 0.1, float("nan")).masked_fill(odd > 0.9, torch.inf).to(dtype)


def random_bitmask(rows: int, vocab: int, rng: torch.Generator) -> Tensor:
    """Half of all bits set; one word in eight allows all, one in eight nothing."""
    shape = (rows, -(-vocab // 32))
    words = torch.randint(-(2**31), 2**31, shape, generator=rng, dtype=torch.int64)
    kind = torch.randint(8, shape, generator=rng)
    return words.masked_fill(kind == 0, -1).masked_fill(kind == 1, 0).to(torch.int32)


def random_rows(count: int, bitmask: Tensor, vocab: int, rng: torch.Generator) -> list[int]:
    """Masks, and in a third of them a token instead."""
    masks = torch.randint(len(bitmask), (count,), generator=rng)
    tokens = torch.randint(vocab, (count,), generator=rng)
    return torch.where(torch.rand(count, generator=rng) < 0.3, ~tokens, masks).tolist()


def same_bits(actual: Tensor, expected: Tensor) -> bool:
    integer = torch.int32 if actual.dtype.itemsize == 4 else torch.int16
    return actual.dtype == expected.dtype and torch.equal(
        actual.view(integer), expected.view(integer)
    )
