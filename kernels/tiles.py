"""NVFP4 in the order for tensor cores, and products with activations of 16 bits (W4A16), on GPUs
from SM 8.0 on.

A checkpoint has rows. A product that reads rows takes 32 bytes of each of 64 rows at a time, from
as many places, and then moves numbers between lanes. In tiles, the numbers that a product reads at
a time are adjacent, and each lane of a warp reads the codes and the one scale of its own numbers,
so that shared memory holds only copied tiles.

A tile is 64 rows of a group of 64 columns. Column c = 16 b + 4 p + 2 i + l of a group is code p of
word e = 8 i + 2 b + l of its row: a lane holds words 2 b, 2 b + 1, 2 b + 8 and 2 b + 9, all of
block b. Activations are ordered alike, column c at 16 p + e (`ordered`): the order of a group's
columns does not matter to a product, as long as both operands have the same.

A word of 16 bits holds four codes, with bits where a shift and a mask turn them into bf16 numbers.
The sign and the three other bits of a code, at bit 15 and at bits 8 to 6 of a bf16, are its number
times 2^-126, including subnormal ones; a scale is multiplied by 2^117, so that both stay in the
range of a bf16. A decoded number is therefore 2^-9 times the true one, exactly.

Products of a block of weights with activations are the parts of the kernels for matrices and
experts. Weights are floats, or NVFP4 in tiles that is decoded in registers, exactly: 4 + 2
significant bits fit bf16 and fp16. A loop goes over groups of 64 columns: `weights` and
`activations` point to the first, `added` adds the product of one. The layout of a product depends
on the GPU (`layout`).

`matmul_w4a16` is the product with one matrix. Ordering its activations is a launch of its own: when
the kernel gathered them, it took 6 to 8 instructions per weight, not 4 to 5, since at most pairs of
columns are adjacent in both orders.

Shapes: stacks `[E, R, C]`, R and C multiples of 64, of G = C / 64 groups; a matrix `[M, K]` is a
stack of one, of which the first M rows count; activations `[N, K]`.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from jaxtyping import Float, Float32, Int16, UInt8
from torch import Tensor
from triton import knobs

from dlm.kernels.configurations import W4A16, Configuration
from dlm.kernels.gpus import major, runs_kernel
from dlm.kernels.nvfp4 import NVFP4, check, check_activations, check_devices, e4m3, matmul_reference

UNIT = 2.0**-9
"""Factor of the decoded numbers: results are divided by it."""

# Places of the bits of codes 0 to 3 of a word: sign first, then the three of e2m1 from the highest.
_BITS = ((15, 8, 7, 6), (12, 5, 4, 3), (9, 2, 1, 0), (14, 13, 11, 10))


class Tiles(NamedTuple):
    """Stack [E, R, C] of NVFP4 in tiles."""

    words: Int16[Tensor, "E R/64 G 64 16"]
    scale: UInt8[Tensor, "E R/64 G 64 4"]  # bytes of e4m3: one for each block of each row
    scale_2: Float32[Tensor, "E parts"]


def tiled(stack: NVFP4) -> Tiles:
    """Return a stack `[E, R, C]` in tiles. Raises `ValueError` if R or C is no multiple of 64.
    Experts are converted one at a time, to save memory."""
    E, R, C = *stack.packed.shape[:2], 2 * stack.packed.shape[2]
    if R % 64 or C % 64:
        raise ValueError(f"tiles are 64 rows of 64 columns, got experts of {R} x {C}")
    device = stack.packed.device
    words = torch.empty(E, R // 64, C // 64, 64, 16, dtype=torch.int16, device=device)
    scale = torch.empty(E, R // 64, C // 64, 64, 4, dtype=torch.uint8, device=device)
    for e in range(E):
        packed, scales = stack.packed[e], stack.scale[e].view(torch.uint8)
        codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1).short()
        codes = codes.view(R // 64, 64, C // 64, 4, 4, 2, 2).permute(0, 2, 1, 5, 3, 6, 4)
        words[e] = _word(codes.reshape(R // 64, C // 64, 64, 16, 4))
        scale[e] = scales.view(R // 64, 64, C // 64, 4).transpose(1, 2)
    return Tiles(words, scale, stack.scale_2)


def tiled_matrix(w: NVFP4) -> Tiles:
    """Return a matrix `[R, C]` as a stack of one in tiles, with zero rows up to a multiple of 64.
    Raises `ValueError` if C is no multiple of 64."""
    missing = (0, 0, 0, -len(w.packed) % 64)
    packed, scale = F.pad(w.packed, missing), F.pad(w.scale.view(torch.uint8), missing)
    return tiled(NVFP4(packed[None], scale.view(torch.float8_e4m3fn)[None], w.scale_2.view(1, 1)))


def untiled(tiles: Tiles) -> NVFP4:
    """Invert `tiled`."""
    words, scale, scale_2 = tiles
    E, r, G = words.shape[:3]
    codes = torch.stack([_code(words, p) for p in range(4)], -1)  # [..., 64, 16 words, 4]
    codes = (
        codes.view(E, r, G, 64, 2, 4, 2, 4)
        .permute(0, 1, 3, 2, 5, 7, 4, 6)
        .reshape(E, 64 * r, 64 * G)
    )
    packed = codes[..., ::2] | codes[..., 1::2] << 4
    scales = scale.transpose(2, 3).reshape(E, 64 * r, 4 * G)
    return NVFP4(packed, scales.view(torch.float8_e4m3fn), scale_2)


def ordered(x: Float[Tensor, "N C"]) -> Float[Tensor, "N C"]:
    """Return a copy with columns in the order of tiles."""
    return x.unflatten(1, (-1, 4, 4, 2, 2)).permute(0, 1, 3, 4, 2, 5).reshape(x.shape)


def _word(codes: Int16[Tensor, "*words 4"]) -> Int16[Tensor, "*words"]:
    word = torch.zeros_like(codes[..., 0], dtype=torch.int32)
    for code, bits in zip(codes.int().unbind(-1), _BITS, strict=True):
        for i, bit in enumerate(bits):
            word |= (code >> (3 - i) & 1) << bit
    return word.short()  # wraps: the highest bit is a sign


def _code(words: Int16[Tensor, "*words"], p: int) -> UInt8[Tensor, "*words"]:
    code = torch.zeros_like(words, dtype=torch.uint8)
    for i, bit in enumerate(_BITS[p]):
        code |= (words.int() >> bit & 1).to(torch.uint8) << (3 - i)
    return code


# Layout of a product with weights of four bits, so that decoded numbers stay where they are. On
# SM 9.0 a warp group multiplies registers by shared memory, 64 columns at a time. Before it and on
# SM 12.0 a warp's instruction takes 16, also on SM 10.0 for weights as the second operand, with few
# rows of activations: all else there goes through shared memory.
BY_SM: dict[int, dict[str, bool]] = {
    8: {"SPLIT": True, "WEIGHTS_FIRST": True},
    9: {"SPLIT": False, "WEIGHTS_FIRST": True},
    10: {"SPLIT": True, "WEIGHTS_FIRST": False},
    12: {"SPLIT": True, "WEIGHTS_FIRST": True},
}


def layout(sm: int, four_bit: bool = True) -> dict[str, Any]:
    """Return the constants of a product on an SM. Weights that are not decoded, with `four_bit`
    false, are never split: that gains nothing. A layout is no choice: weights are stored for it."""
    fixed = BY_SM.get(sm, BY_SM[9])
    split = four_bit and fixed["SPLIT"]
    return {**fixed, "SPLIT": split, "ASSEMBLY": not knobs.runtime.interpret}


def scales(scale: Tensor, sm: int) -> Tensor:
    """Return the scales of tiles in the form for `weights`: bytes, or words of four."""
    return scale if layout(sm)["WEIGHTS_FIRST"] else scale.view(torch.int32)


def matmul_w4a16(
    x: Float[Tensor, "N K"],
    w: NVFP4 | Tiles,
    by_kernel: bool | None = None,
    rows: int | None = None,
    configuration: Configuration | None = None,
) -> Float[Tensor, "N M"]:
    """Compute `matmul_reference`, summed in fp32 in another order; by the kernel on GPUs.

    `x` is bf16 or fp16; its rows may have gaps between them. The kernel takes the tiles that
    `tiled_matrix` makes of `w`; `rows` are then the rows of `w`, by default all of the tiles.
    `by_kernel` is as in `quantize`. `configuration` is a candidate of the kernel; None: that of its
    rule. Raises `ValueError` for arguments that do not fit.
    """
    if isinstance(w, Tiles):
        M = _check_tiles(x, w, rows)
    else:
        check(x, w)
        M = len(w.packed)
        if rows not in (None, M):
            raise ValueError(f"rows is {rows}, and the weights have {M}")
    if not runs_kernel(x.device, by_kernel):
        return matmul_reference(x, _matrix(w, M) if isinstance(w, Tiles) else w)
    if not isinstance(w, Tiles):
        raise ValueError("the kernel takes NVFP4 in tiles: `tiled_matrix` makes them, once")
    sm, (N, K) = major(x.device), x.shape
    y = torch.empty(N, M, dtype=x.dtype, device=x.device)
    chosen = configuration or W4A16.choose(x.device, rows=N, outputs=M, inputs=K)
    tile: dict[str, Any] = {**chosen}
    grid = triton.cdiv(M, tile["BLOCK_M"]), triton.cdiv(N, tile["BLOCK_N"])
    pointers = ordered(x), w.words, scales(w.scale, sm), w.scale_2, y
    with torch.cuda.device_of(x):
        _w4a16_kernel[grid](*pointers, N, M, K // 64, **layout(sm), **tile)
    return y


def _matrix(w: Tiles, M: int) -> NVFP4:
    packed, scale, scale_2 = untiled(w)
    return NVFP4(packed[0, :M], scale[0, :M], scale_2[0, 0])


def _check_tiles(x: Tensor, w: Tiles, rows: int | None) -> int:
    """Return the number of rows of weights."""
    check_activations(x)
    K, R = x.shape[1], w.words.shape[1] if w.words.ndim == 5 else 0
    kinds = [([*each.shape], each.dtype) for each in w]
    shapes = [1, R, K // 64, 64, 16], [1, R, K // 64, 64, 4], [1, 1]
    types = torch.int16, torch.uint8, torch.float32
    if kinds != [*zip(shapes, types, strict=True)] or not all(each.is_contiguous() for each in w):
        raise ValueError(
            f"weights in tiles for rows of {K} are contiguous, [1, R, {K // 64}, 64, 16] of int16, "
            f"[1, R, {K // 64}, 64, 4] of uint8 and [1, 1] of float32, got {kinds}"
        )
    check_devices(x, w)
    M = 64 * R if rows is None else rows
    if not 64 * R - 64 < M <= 64 * R and M != R:  # none in no tiles
        raise ValueError(f"rows is {M}, and the tiles are of {64 * R}")
    return M


@triton.jit
def column(place):
    """Return the columns of a group that are at some places of ordered ones."""
    p, e = place % 64 // 16, place % 16
    return place // 64 * 64 + e % 8 // 2 * 16 + p * 4 + e // 8 * 2 + e % 2


@triton.jit
def place(column):
    """Return the places of columns in ordered ones."""
    b, p, i = column % 64 // 16, column % 16 // 4, column % 4 // 2
    return column // 64 * 64 + p * 16 + i * 8 + b * 2 + column % 2


_CODES = tl.constexpr("""
{
.reg .b32 a, b;
and.b32 $0, $4, 0x81C081C0;
shl.b32 a, $4, 3;
and.b32 $1, a, 0x81C081C0;
shl.b32 a, $4, 6;
and.b32 $2, a, 0x81C081C0;
shl.b32 a, $4, 1;
and.b32 a, a, 0x80008000;
shr.b32 b, $4, 5;
lop3.b32 a, b, 0x01000100, a, 0xEA;
shr.b32 b, $4, 4;
lop3.b32 $3, b, 0x00C000C0, a, 0xEA;
}
""")
_TIMES = tl.constexpr("{ .reg .b32 n; mov.b32 n, 0x80008000; fma.rn.bf16x2 $0, $1, $2, n; }")


@triton.jit
def codes(words, ASSEMBLY: tl.constexpr):
    """Return four bf16 `[M, 16]` of int16 `[M, 16]`: codes 0 to 3, times 2^-126. `ASSEMBLY` does
    two words at a time. The interpreter cannot; both are equal bit for bit."""
    if ASSEMBLY:
        a, b, c, d = tl.inline_asm_elementwise(
            _CODES,  # pyright: ignore[reportArgumentType]
            "=&r,=&r,=&r,=&r,r",
            [words],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    else:
        w = words.to(tl.int32) & 0xFFFF
        last = ((w << 1) & 0x8000) | ((w >> 5) & 0x0100) | ((w >> 4) & 0x00C0)
        a = (w & 0x81C0).to(tl.uint16).to(tl.bfloat16, bitcast=True)
        b = ((w << 3) & 0x81C0).to(tl.uint16).to(tl.bfloat16, bitcast=True)
        c = ((w << 6) & 0x81C0).to(tl.uint16).to(tl.bfloat16, bitcast=True)
        d = last.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return a, b, c, d


@triton.jit
def times(a, b, ASSEMBLY: tl.constexpr):
    """Return the product of two bf16 tensors, two numbers at a time with `ASSEMBLY`."""
    if ASSEMBLY:
        y = tl.inline_asm_elementwise(
            _TIMES,  # pyright: ignore[reportArgumentType]
            "=r,r,r",
            [a, b],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=2,
        )
    else:
        y = (a.to(tl.float32) * b.to(tl.float32)).to(tl.bfloat16)
    return y


@triton.jit
def decoded_words(words, scale, M: tl.constexpr, ASSEMBLY: tl.constexpr):
    """Return codes 0 to 3 of each word, bf16 `[M, 16]` each, times `UNIT`. `words` is int16 `[M,
    16]`; `scale` `[M, 4]` has the bytes of e4m3 of the blocks of each row."""
    s = (e4m3(scale.to(tl.int32)).to(tl.float32) * 1.661534994731145e35).to(tl.bfloat16)  # 2^117
    s = tl.reshape(tl.broadcast_to(s[:, None, :, None], [M, 2, 4, 2]), [M, 16])
    a, b, c, d = codes(words, ASSEMBLY)
    return (
        times(a, s, ASSEMBLY),
        times(b, s, ASSEMBLY),
        times(c, s, ASSEMBLY),
        times(d, s, ASSEMBLY),
    )


@triton.jit
def joined(a, b, c, d, M: tl.constexpr):
    """Return `[M, 64]`: the columns of `a`, then those of `b`, `c` and `d`, `[M, 16]` each."""
    x = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [M, 16, 4])
    return tl.reshape(tl.trans(x, 0, 2, 1), [M, 64])


@triton.jit
def weights(w_ptr, scale_ptr, row, groups, FOUR_BIT: tl.constexpr, WEIGHTS_FIRST: tl.constexpr):
    """Return pointers to the first group of columns of some rows, and to its scales.

    A row's four scales are bytes if weights are the first operand, otherwise one int32: Triton
    chooses the layout of operands by the smallest loaded type, and the order of bytes would cost a
    second operand moves.
    """
    if FOUR_BIT:
        at = row // 64 * (groups * 64) + row % 64  # of 16 words and four scales each
        w_at = w_ptr + (at * 16)[:, None] + tl.arange(0, 16)[None, :]
        if WEIGHTS_FIRST:
            scale_at = scale_ptr + (at * 4)[:, None] + tl.arange(0, 4)[None, :]
        else:
            scale_at = scale_ptr + at
    else:
        w_at = w_ptr + (row * (groups * 64))[:, None] + tl.arange(0, 64)[None, :]
        scale_at = scale_ptr
    return w_at, scale_at


@triton.jit
def activations(x_ptr, SPLIT: tl.constexpr):
    """Load a group of 64 columns: either whole, four times, or its quarters."""
    a = tl.load(x_ptr)
    b, c, d = a, a, a
    if SPLIT:
        b, c, d = tl.load(x_ptr + 16), tl.load(x_ptr + 32), tl.load(x_ptr + 48)
    return a, b, c, d


@triton.jit
def _dot(w, x, acc, WEIGHTS_FIRST: tl.constexpr):
    """Add `w x` to `acc`, or to the transposed `acc`."""
    return tl.dot(w, x, acc) if WEIGHTS_FIRST else tl.dot(tl.trans(x), tl.trans(w), acc)


@triton.jit
def added(
    acc, w_ptr, scale_ptr, x, FOUR_BIT: tl.constexpr, SPLIT: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr, ASSEMBLY: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Add to `acc` the product of a group of columns of weights with `x`, of `activations`."""
    if FOUR_BIT:
        scale = tl.load(scale_ptr)
        if not WEIGHTS_FIRST:
            scale = (scale[:, None] >> (tl.arange(0, 4) * 8)[None, :]) & 0xFF
        found = decoded_words(tl.load(w_ptr), scale, BLOCK_M, ASSEMBLY)
        a, b, c, d = found  # pyright: ignore[reportGeneralTypeIssues]  # it is no call
        dtype: tl.constexpr = x[0].dtype
        a, b, c, d = a.to(dtype), b.to(dtype), c.to(dtype), d.to(dtype)
        if SPLIT:
            acc = _dot(a, x[0], acc, WEIGHTS_FIRST)
            acc = _dot(b, x[1], acc, WEIGHTS_FIRST)
            acc = _dot(c, x[2], acc, WEIGHTS_FIRST)
            acc = _dot(d, x[3], acc, WEIGHTS_FIRST)
        else:
            acc = _dot(joined(a, b, c, d, BLOCK_M), x[0], acc, WEIGHTS_FIRST)
    else:
        acc = _dot(tl.load(w_ptr), x[0], acc, WEIGHTS_FIRST)
    return acc


@triton.jit
def zeros(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WEIGHTS_FIRST: tl.constexpr):
    """Return the initial accumulator of `added`."""
    if WEIGHTS_FIRST:
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    else:
        acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    return acc


@triton.jit
def _w4a16_kernel(
    x_ptr,  # [N, 64 * groups] bf16 or fp16, `ordered`
    w_ptr,  # words of tiles of 64 * groups columns
    scale_ptr,  # those of tiles, as `scales` has them
    scale_2_ptr,  # one fp32
    y_ptr,  # [N, M] as x
    N,
    M,
    groups,
    SPLIT: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
    ASSEMBLY: tl.constexpr,
    UNROLL: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row = tl.minimum(m, M - 1).to(tl.int64)  # after the end, the last one, without masks
    first = weights(w_ptr, scale_ptr, row, groups, True, WEIGHTS_FIRST)
    w_at, scale_at = first  # pyright: ignore[reportGeneralTypeIssues]  # it is no call
    column = tl.arange(0, 16 if SPLIT else 64)
    x_at = x_ptr + (tl.minimum(n, N - 1).to(tl.int64) * (groups * 64))[None, :] + column[:, None]
    acc = zeros(BLOCK_M, BLOCK_N, WEIGHTS_FIRST)
    for _ in tl.range(groups, loop_unroll_factor=UNROLL):
        x = activations(x_at, SPLIT)
        acc = added(acc, w_at, scale_at, x, True, SPLIT, WEIGHTS_FIRST, ASSEMBLY, BLOCK_M)
        x_at += 64
        w_at += 1024
        scale_at += 256 if WEIGHTS_FIRST else 64
    acc *= tl.load(scale_2_ptr) * 512  # 1 / UNIT
    if not WEIGHTS_FIRST:
        acc = tl.trans(acc)
    at = y_ptr + n.to(tl.int64)[None, :] * M + m[:, None]
    tl.store(at, acc.to(y_ptr.dtype.element_ty), (n < N)[None, :] & (m < M)[:, None])
