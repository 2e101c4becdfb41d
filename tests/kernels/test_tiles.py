"""Tiles hold the numbers of rows; every word is decoded exactly with every scale."""

import pytest
import torch
import triton
import triton.language as tl
from exhaustive import by_default
from torch import Tensor
from triton import knobs

from dlm.kernels.norms import AttentionGains, add_attention
from dlm.kernels.nvfp4 import NVFP4, dequantize, quantize
from dlm.kernels.tiles import (
    UNIT,
    Tiles,
    column,
    decoded_words,
    ordered,
    place,
    tiled,
    tiled_matrix,
    untiled,
)

SCALES = range(127)  # bytes of e4m3 that are no NaN and not negative
ROWS = 4096  # of 16 words each: all words that there are
BLOCK = (
    ROWS if knobs.runtime.interpret else 128
)  # rows of a program; the interpreter runs one at a time


def random_stack(E: int, R: int, C: int, rng: torch.Generator) -> NVFP4:
    packed = torch.randint(256, (E, R, C // 2), generator=rng, dtype=torch.uint8)
    scale = torch.randint(127, (E, R, C // 16), generator=rng, dtype=torch.uint8)
    return NVFP4(packed, scale.view(torch.float8_e4m3fn), torch.rand(E, 1, generator=rng))


def assert_same(a: NVFP4, b: NVFP4) -> None:
    assert torch.equal(a.packed, b.packed)
    assert torch.equal(a.scale.view(torch.uint8), b.scale.view(torch.uint8))
    assert torch.equal(a.scale_2, b.scale_2)


@pytest.mark.parametrize("shape", [(1, 64, 64), (3, 128, 192), (2, 320, 64), (0, 64, 64)])
def test_a_stack_comes_back_from_tiles(shape, rng):
    stack = random_stack(*shape, rng)

    assert_same(untiled(tiled(stack)), stack)


@pytest.mark.parametrize("R", [1, 63, 64, 130])
def test_a_matrix_is_padded_to_whole_tiles_with_rows_of_zeros(R, rng):
    w = quantize(torch.randn(R, 128, generator=rng))

    packed, scale, scale_2 = untiled(tiled_matrix(w))

    assert len(packed[0]) % 64 == 0
    assert_same(NVFP4(packed[0, :R], scale[0, :R], scale_2[0, 0]), w)
    assert not packed[0, R:].any()
    assert not scale[0, R:].view(torch.uint8).any()


@pytest.mark.parametrize("shape", [(1, 64, 96), (1, 96, 64), (2, 1, 16)])
def test_a_stack_that_does_not_fill_whole_tiles_is_refused(shape, rng):
    with pytest.raises(ValueError, match=f"64 rows of 64 columns, got .* {shape[1]} x {shape[2]}$"):
        tiled(random_stack(*shape, rng))


def test_a_matrix_whose_rows_do_not_fill_whole_tiles_is_refused(rng):
    with pytest.raises(ValueError, match="64 rows of 64 columns, got experts of 64 x 96"):
        tiled_matrix(quantize(torch.randn(3, 96, generator=rng)))


def test_columns_are_ordered_by_the_formula():
    """Column 16 b + 4 p + 2 i + l is code p of word 8 i + 2 b + l, and is at 16 p + the word."""
    x = ordered(torch.arange(192.0)[None])[0].long()

    for c in range(192):
        b, p, i, l = c % 64 // 16, c % 16 // 4, c % 4 // 2, c % 2  # noqa: E741
        assert x[c // 64 * 64 + 16 * p + 8 * i + 2 * b + l] == c


def test_a_code_is_in_the_word_that_its_column_names(rng):
    """The matrix has zeros and a single 6."""
    for c in torch.randperm(64, generator=rng)[:16].tolist():
        w = torch.zeros(64, 64)
        w[5, c] = 6
        words, _, _ = tiled_matrix(quantize(w, torch.tensor(1 / 448)))
        b, p, i, l = c // 16, c % 16 // 4, c % 4 // 2, c % 2  # noqa: E741
        bits = ((8, 7, 6), (5, 4, 3), (2, 1, 0), (13, 11, 10))[p]
        expected = torch.zeros(64, 16, dtype=torch.int16)
        expected[5, 8 * i + 2 * b + l] = sum(1 << bit for bit in bits)
        assert torch.equal(words[0, 0, 0], expected)


@triton.jit
def _places_kernel(column_ptr, back_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(column_ptr + at, column(at))
    tl.store(back_ptr + at, place(column(at)))


def test_kernels_compute_the_order_of_columns_and_its_inverse():
    found, back = torch.empty(2, 256, dtype=torch.int32)

    _places_kernel[(1,)](found, back, 256)

    assert torch.equal(found, ordered(torch.arange(256)[None])[0].int())
    assert torch.equal(back, torch.arange(256, dtype=torch.int32))


@triton.jit
def _decode_kernel(words_ptr, scale_ptr, out_ptr, BLOCK: tl.constexpr, ASSEMBLY: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    words = tl.load(words_ptr + row * 16 + tl.arange(0, 16)[None, :])
    scale = tl.load(scale_ptr + row * 4 + tl.arange(0, 4)[None, :])
    a, b, c, d = decoded_words(words, scale, BLOCK, ASSEMBLY)
    at = out_ptr + row * 64 + tl.arange(0, 16)[None, :]
    tl.store(at, a)
    tl.store(at + 16, b)
    tl.store(at + 32, c)
    tl.store(at + 48, d)


def all_words() -> Tensor:
    return torch.arange(2**16).short().view(ROWS, 16)


def decoded(scale: Tensor, assembly: bool) -> Tensor:
    words = all_words().to(scale.device)
    out = torch.empty(ROWS, 64, dtype=torch.bfloat16, device=scale.device)
    _decode_kernel[(ROWS // BLOCK,)](words, scale, out, BLOCK, assembly)
    return out


def decoded_exactly(scale: Tensor) -> bool:
    words = all_words().view(1, ROWS // 64, 1, 64, 16)
    w = untiled(Tiles(words, scale.view(1, ROWS // 64, 1, 64, 4), torch.ones(1, 1)))
    expected = dequantize(NVFP4(w.packed[0], w.scale[0], torch.ones(())))
    return torch.equal(decoded(scale, assembly=False).float() / UNIT, ordered(expected))


@pytest.mark.parametrize("scales", by_default([SCALES[::9], SCALES]), ids=len)
def test_every_word_with_every_scale_is_decoded_exactly(scales):
    for byte in scales:
        assert decoded_exactly(torch.full((ROWS, 4), byte, dtype=torch.uint8)), byte


def test_each_block_of_a_row_has_its_own_scale(rng):
    assert decoded_exactly(torch.randint(127, (ROWS, 4), generator=rng, dtype=torch.uint8))


@pytest.mark.gpu
def test_assembly_and_arithmetic_decode_to_the_same_bits():
    for byte in SCALES:
        scale = torch.full((ROWS, 4), byte, dtype=torch.uint8, device="cuda")
        by_assembly, by_arithmetic = (decoded(scale, assembly) for assembly in (True, False))
        assert torch.equal(by_assembly.view(torch.int16), by_arithmetic.view(torch.int16)), byte


def test_norms_after_attention_order_the_input_of_experts_and_nothing_else(by_kernel, rng):
    x, attended = (torch.randn(3, 192, generator=rng).bfloat16() for _ in range(2))
    gains = AttentionGains(*((torch.rand(192, generator=rng) + 0.5).bfloat16() for _ in range(4)))

    plain, in_order = (
        add_attention(x, attended, gains, 1e-6, order=order, by_kernel=by_kernel)
        for order in (False, True)
    )

    assert torch.equal(in_order.routed, ordered(plain.routed))
    for ours, theirs in zip(in_order._replace(routed=x), plain._replace(routed=x), strict=True):
        assert torch.equal(ours, theirs)
