"""Attention over a paged cache, for all segments of a packed pass at once.

A pass packs the tokens of many requests into one axis. The keys and values of a causal segment (a
prompt, a part of one, a committed canvas) are in the cache before attention starts, and each of its
tokens sees those up to itself. So are those of an image in a prompt, whose tokens see all tokens of
the image. A canvas that is being denoised sees the cached tokens of its request and its own tokens
in both directions; its own keys and values are neither cached nor rounded. In a layer with a
window, a token at position p sees cached ones from p - window + 1 on, and those of its image; all
tokens of a canvas see what its first one sees. In a model that caches whole blocks, a token of a
causal segment also sees those after it up to the end of its block; blocks count from position 0.
`attention_reference` defines this in a few lines.

The kernel: rows of a tile are the queries of all heads that share a key head, so that keys are read
once for all of them. Values of wide heads are split between programs, so that a tile fits the
101,376 bytes of shared memory of SM 12.0. If there are few tiles, keys are split too, and a second
kernel merges the parts, always in the same order. fp8 pages are converted in registers. Nothing is
read back from the device. With fp8 pages queries are rounded to fp16, which is one instruction away
from e4m3, and whose range queries of normed heads do not exceed.

In plain torch, `attention_by_segment.py` computes the same.

Shapes: `N` tokens of `H` heads of `D` numbers, `h` heads of keys and values, pages of `p` tokens.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from dlm.kernels.attention_by_segment import attention_by_segment
from dlm.kernels.configurations import ATTENTION, HEADS, Configuration
from dlm.kernels.gpus import has_e4m3
from dlm.kernels.paging import CANVAS, CAUSAL, IMAGE, Pages, Paging, Segment, check_pages, decoded

_PROGRAMS = 160  # programs that run at once on the 132 to 188 multiprocessors of the intended GPUs
_KEYS = 256  # least keys for a program when keys are split
_SPLITS = 16  # maximum
_EVERYTHING = 1 << 30  # a window longer than any request


class Launch(NamedTuple):
    """Launch parameters that the host decides, beside shapes. All else is read on the device: a
    captured launch serves any paging with the same parameters."""

    tiles: int
    splits: int  # of keys
    covered: int  # rows of the packed axis that belong to segments; later ones are padding
    tile: tuple[int, ...]  # numbers of the configuration, in the order of its options


def attention_reference(
    q: Float[Tensor, "N H D"],
    k: Float[Tensor, "N h D"],
    v: Float[Tensor, "N h D"],
    pages: Pages,
    paging: Paging,
    window: int | None = None,
    block: int = 1,
) -> Float[Tensor, "N H D"]:
    """Define `attention` in fp64: softmax(q k) v over all that a token sees."""
    out = torch.zeros_like(q, dtype=torch.float64)
    shared, p = q.shape[1] // k.shape[1], pages.keys.shape[1]
    for segment, table in zip(paging.segments, paging.table.tolist(), strict=True):
        for token in range(segment.tokens):
            row, at, kind = segment.row + token, segment.position, segment.kind
            causal = (token // block + 1) * block
            seen = range(at + {CANVAS: 0, CAUSAL: causal, IMAGE: segment.tokens}[kind])
            if window is not None:
                oldest = at + token * (kind != CANVAS) - window + 1
                seen = seen[max(0, min(oldest, at) if kind == IMAGE else oldest) :]
            places = [table[n // p - segment.page] * p + n % p for n in seen]
            own = slice(segment.row, segment.row + segment.tokens * (kind == CANVAS))
            each = (pages.keys, pages.k_scale, k[own]), (pages.values, pages.v_scale, v[own])
            seen_k, seen_v = (
                torch.cat(
                    (pool.flatten(0, 1)[places].double() * scale.double(), x.double())
                ).repeat_interleave(shared, 1)
                for pool, scale, x in each
            )
            weight = torch.einsum("hd,nhd->hn", q[row].double(), seen_k).softmax(-1)
            out[row] = torch.einsum("hn,nhd->hd", weight, seen_v)
    return out


def attention(
    q: Float[Tensor, "N H D"],
    k: Float[Tensor, "N h D"],
    v: Float[Tensor, "N h D"],
    pages: Pages,
    paging: Paging,
    window: int | None = None,
    by_kernel: bool | None = None,
    configuration: Configuration | None = None,
    block: int = 1,
) -> Float[Tensor, "N H D"]:
    """Compute `attention_reference` in q's type: by kernels on GPUs, except for fp32, otherwise in
    torch.

    Rows after those of all segments are padding, and zero in the result. `append_` must have stored
    what `paging` lists; only the canvases of `k` and `v` are read. The kernels take head dims of
    `HEADS`, and pages of q's type or e4m3. Causal segments are whole blocks of `block` tokens, of
    more than one only without a window.

    `by_kernel` overrides the choice, as in `dlm.kernels`. `configuration` is a candidate of the
    kernel; None: that of its rule. Raises `ValueError` for shapes and types that do not fit; the
    values of tensors are not checked.
    """
    _check(q, k, v, pages, paging, window, block)
    half = q.dtype in (torch.bfloat16, torch.float16)
    if not (q.device.type != "cpu" and half if by_kernel is None else by_kernel):
        return attention_by_segment(q, k, v, pages, paging, window, block)
    H, h, D = q.shape[1], *k.shape[1:]
    kind, size = pages.keys.dtype, pages.keys.dtype.itemsize
    if not half or (D, size) not in HEADS or (size > 1 and kind != q.dtype):
        raise ValueError(
            f"the kernels take bf16 or fp16, pages of the same type or e4m3, and head dims "
            f"{sorted({D for D, _ in HEADS})}; got {q.dtype}, pages of {kind}, head dim {D}"
        )
    if not _covered(paging):
        return torch.zeros_like(q)
    launch = launch_of(paging, window, H, h, D, size, q.device, configuration)
    options = window or _EVERYTHING, block, *launch[:3], [*launch.tile]
    return _attention(q, k, v, *pages, paging.numbers, paging.table, *options)


def launch_of(
    paging: Paging,
    window: int | None,
    H: int,
    h: int,
    D: int,
    size: int,
    device: torch.device,
    configuration: Configuration | None = None,
) -> Launch:
    """Return the launch of one segment or more over pages whose numbers have `size` bytes."""
    tile = configuration or ATTENTION.choose(device, head_dim=D, bytes=size)
    tiles = sum(-(-s.tokens * (H // h) // tile["BLOCK_M"]) for s in paging.segments)
    longest = max(s.position + s.tokens for s in paging.segments)
    splits = _splits(tiles * h * (D // tile["DV"]), min(longest, window or longest))
    return Launch(tiles, splits, _covered(paging), (*ATTENTION.numbers(tile),))


def key_counts() -> list[int]:
    """Return the numbers of keys, ascending, from each of which on launches may be others."""
    return [1, *(_KEYS << i for i in range(_SPLITS.bit_length()))]


def _splits(programs: int, keys: int) -> int:
    """Return the number of parts that keys are split into, a power of 2: each number is
    compiled."""
    most = min(-(-_PROGRAMS // programs), keys // _KEYS, _SPLITS)
    return 1 << max(0, most.bit_length() - 1)


def _covered(paging: Paging) -> int:
    return sum(segment.tokens for segment in paging.segments)


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pages: Pages,
    paging: Paging,
    window: int | None,
    block: int,
) -> None:
    check_pages(pages, k, v)
    N, h, D = k.shape
    if q.ndim != 3 or q.shape[::2] != (N, D) or q.shape[1] % h or q.dtype != k.dtype:
        raise ValueError(
            f"q is [{N}, H, {D}] of {k.dtype}, H a multiple of {h}, got {[*q.shape]} of {q.dtype}"
        )
    if not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
        raise ValueError("q, k and v must be contiguous")
    if _covered(paging) > N:
        raise ValueError(f"segments of {_covered(paging)} tokens for {N} queries")
    if window is not None and window < 1:
        raise ValueError(f"a window is 1 token or more, or None, got {window}")
    if block < 1 or (block > 1 and window is not None):
        raise ValueError(f"a block is 1 token, or more without a window, got {block}")
    for segment in paging.segments if block > 1 else ():
        if segment.kind == CAUSAL and (segment.position % block or segment.tokens % block):
            raise ValueError(
                f"causal segments are whole blocks of {block}, got {segment.tokens} tokens at "
                f"position {segment.position}"
            )
    S = len(paging.segments)
    for name, tensor, shape in (
        ("numbers", paging.numbers, (len(Segment._fields), S)),
        ("table", paging.table, (S, paging.table.shape[-1])),
    ):
        if tensor.shape != shape or tensor.dtype != torch.int32 or not tensor.is_contiguous():
            raise ValueError(
                f"{name} is int32 {[*shape]} without gaps, got {tensor.dtype} {[*tensor.shape]}"
            )
        if tensor.device != q.device:
            raise ValueError(f"q is on {q.device} and {name} on {tensor.device}")


@torch.library.custom_op("dlm::paged_attention", mutates_args=())
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    numbers: Tensor,
    table: Tensor,
    window: int,
    block: int,
    tiles: int,
    splits: int,
    covered: int,
    tile_numbers: list[int],
) -> Tensor:
    """Launch as one operator, since tracers cannot see into a launch."""
    (N, H, D), h = q.shape, k.shape[1]
    tile: Configuration = ATTENTION.configuration(tile_numbers)
    if keys.dtype == torch.float8_e4m3fn and not has_e4m3(q.device):
        keys, values = keys.view(torch.uint8), values.view(torch.uint8)
    out, parts, sums = torch.empty_like(q), q, q
    out[covered:] = 0
    if splits > 1:
        parts = torch.empty(splits, N, H, D, dtype=torch.float32, device=q.device)
        sums = torch.empty(splits, 2, N, H, dtype=torch.float32, device=q.device)
    count, width = table.shape
    constants: dict[str, Any] = {
        **{"G": H // h, "D": D, "PAGE": keys.shape[1], "BLOCK": block, "SPLITS": splits},
        **{"SEGMENTS": max(16, triton.next_power_of_2(count)), **tile},
    }
    with torch.cuda.device_of(q):
        _attention_kernel[tiles, h, D // tile["DV"] * splits](
            *(q, keys, values, k, v, k_scale, v_scale, numbers, table),
            *(out if splits == 1 else parts, sums, count, width, N, window),
            **constants,
        )
        if splits > 1:
            constants = {"D": D, "SPLITS": splits}
            _merge_kernel[(covered * H,)](parts, sums, out, N * H, **constants)
    return out


@_attention.register_fake
def _(q: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(q)


@triton.jit
def _tile(numbers_ptr, count, G: tl.constexpr, SEGMENTS: tl.constexpr, BLOCK_M: tl.constexpr):
    """Return the segment of the program's tile, and the tile's number in it."""
    index, tile = tl.arange(0, SEGMENTS), tl.program_id(0)
    tokens = tl.load(numbers_ptr + count + index, mask=index < count, other=0)
    tiles = (tokens * G + BLOCK_M - 1) // BLOCK_M
    last = tl.cumsum(tiles, 0)
    segment = tl.sum(((last <= tile) & (index < count)).to(tl.int32), 0)
    before = tl.sum(tl.where(index < segment, tiles, 0), 0)
    return segment, tile - before


@triton.jit
def _attended(acc, top, total, scores, v):
    """Add a block of keys: softmax in base 2, over the keys so far."""
    new = tl.maximum(top, tl.max(scores, 1))
    shift = tl.where(new == float("-inf"), 0.0, new)  # a row may see nothing of a block
    p = tl.exp2(scores - shift[:, None])
    shrink = tl.exp2(top - shift)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None])
    return acc, new, total * shrink + tl.sum(p, 1)


@triton.jit(do_not_specialize=["count", "width", "rows", "window"])
def _attention_kernel(
    q_ptr,  # [rows, h * G, D] bf16 or fp16
    keys_ptr,  # [pages, PAGE, h, D] as q, or e4m3, or its bytes
    values_ptr,
    own_k_ptr,  # [rows, h, D] as q
    own_v_ptr,
    k_scale_ptr,  # [1] fp32
    v_scale_ptr,
    numbers_ptr,  # [5, count] int32: first row, tokens, position, kind, first page
    table_ptr,  # [count, width] int32
    out_ptr,  # [rows, h * G, D] as q; in parts, [SPLITS, rows, h * G, D] fp32
    sums_ptr,  # in parts, [SPLITS, 2, rows, h * G] fp32: highest score, sum of weights
    count,
    width,
    rows,
    window,
    G: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,  # tokens that see each other, of a causal segment
    SPLITS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    OWN_N: tl.constexpr,
):
    """Compute attention for one tile. The segment's numbers are loaded again where they are needed
    late: a tile uses nearly all registers, and values kept over a loop would spill."""
    place = _tile(numbers_ptr, count, G, SEGMENTS, BLOCK_M)
    segment, tile = place  # pyright: ignore[reportGeneralTypeIssues]  # it is no call
    at = numbers_ptr + segment
    row, tokens, position = tl.load(at), tl.load(at + count), tl.load(at + 2 * count)
    kind, first_page = tl.load(at + 3 * count), tl.load(at + 4 * count)
    stored_too, image = kind > 0, kind > 1  # the kinds are CANVAS, CAUSAL, IMAGE
    kv_head, heads = tl.program_id(1), tl.num_programs(1)
    half, part = tl.program_id(2) % (D // DV), tl.program_id(2) // (D // DV)
    m = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    head = kv_head * G + m % G
    d, dv = tl.arange(0, D), half * DV + tl.arange(0, DV)

    # Blocks of cached positions `start` to `end - 1`, then the canvas's own; and our share.
    last_of_tile = (tile * BLOCK_M + BLOCK_M - 1) // G
    if BLOCK > 1:
        last_of_tile = (last_of_tile // BLOCK + 1) * BLOCK - 1
    tokens_up_to_here = tl.minimum(tokens, last_of_tile + 1)
    end = position + tl.where(image, tokens, tl.where(stored_too, tokens_up_to_here, 0))
    latest = tl.where(image, position, 1 << 30)  # position of the last token that is `oldest`
    last = m // G  # token of the segment that a row sees, if it is causal
    if BLOCK > 1:
        last = (last // BLOCK + 1) * BLOCK - 1
    oldest = tl.minimum(position + tl.where(stored_too, last, 0) - window + 1, latest)  # by row
    span = tl.where(image, (1 << 31) - 1, tl.where(stored_too, window, window - 1))
    begins = position + tl.where(stored_too, tile * BLOCK_M // G, 0) - window + 1
    start = tl.maximum(0, tl.minimum(begins, latest))
    first = start // BLOCK_N
    cached = tl.maximum(0, (end + BLOCK_N - 1) // BLOCK_N - first)
    own = tl.where(stored_too, 0, (tokens + OWN_N - 1) // OWN_N)
    share = (cached + own + SPLITS - 1) // SPLITS
    begin = part * share
    stop = tl.minimum(begin + share, cached + own)

    log2e = 1.4426950408889634
    acc = tl.zeros([BLOCK_M, DV], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    q_row = (row + m // G).to(tl.int64) * (heads * G) + head
    q = tl.load(
        q_ptr + (q_row * D)[:, None] + d[None, :], mask=(m // G < tokens)[:, None], other=0.0
    )
    for block in range(tl.maximum(begin - cached, 0), stop - cached):
        n = block * OWN_N + tl.arange(0, OWN_N)
        there = n < tokens
        at_kv = ((row + n).to(tl.int64) * heads + kv_head) * D
        k = tl.load(own_k_ptr + at_kv[None, :] + d[:, None], mask=there[None, :], other=0.0)
        scores = tl.where(there[None, :], tl.dot(q, k) * log2e, float("-inf"))
        v = tl.load(own_v_ptr + at_kv[:, None] + dv[None, :], mask=there[:, None], other=0.0)
        attended = _attended(acc, top, total, scores, v)
        acc, top, total = attended  # pyright: ignore[reportGeneralTypeIssues]

    acc /= tl.load(v_scale_ptr)
    k_factor = tl.load(k_scale_ptr) * log2e
    pages = table_ptr + segment * width - first_page
    row, tokens = tl.load(at, volatile=True), tl.load(at + count, volatile=True)
    q_row = (row + m // G).to(tl.int64) * (heads * G) + head
    q = tl.load(
        q_ptr + (q_row * D)[:, None] + d[None, :], mask=(m // G < tokens)[:, None], other=0.0
    )
    if keys_ptr.dtype.element_ty.primitive_bitwidth == 8:  # e4m3 is one instruction away from fp16
        q = q.to(tl.float16)
    for block in range(first + begin, first + tl.minimum(stop, cached)):
        n = block * BLOCK_N + tl.arange(0, BLOCK_N)
        stored = (n >= start) & (n < end)
        page = tl.load(pages + n // PAGE, mask=stored, other=0).to(tl.int64)
        at_kv = ((page * PAGE + n % PAGE) * heads + kv_head) * D
        k = tl.load(keys_ptr + at_kv[None, :] + d[:, None], mask=stored[None, :], other=0.0)
        key = tl.where(n < end, n, -(1 << 30))  # before the oldest: none of `span` follows it
        seen = (key[None, :] - oldest[:, None]).to(tl.uint32) < span
        scores = tl.where(seen, tl.dot(q, decoded(k, q.dtype)) * k_factor, float("-inf"))
        v = tl.load(values_ptr + at_kv[:, None] + dv[None, :], mask=stored[:, None], other=0.0)
        attended = _attended(acc, top, total, scores, decoded(v, q.dtype))
        acc, top, total = attended  # pyright: ignore[reportGeneralTypeIssues]
    acc *= tl.load(v_scale_ptr)

    q_row = (tl.load(at, volatile=True) + m // G).to(tl.int64) * (heads * G) + head
    real = m // G < tl.load(at + count, volatile=True)
    at_out = (q_row * D)[:, None] + dv[None, :]
    if SPLITS > 1:
        size = rows.to(tl.int64) * heads * G
        tl.store(out_ptr + part * size * D + at_out, acc, mask=real[:, None])
        if half == 0:
            tl.store(sums_ptr + part * 2 * size + q_row, top, mask=real)
            tl.store(sums_ptr + (part * 2 + 1) * size + q_row, total, mask=real)
    else:
        out = acc / tl.where(real, total, 1.0)[:, None]
        tl.store(out_ptr + at_out, out.to(out_ptr.dtype.element_ty), mask=real[:, None])


@triton.jit(do_not_specialize=["rows"])
def _merge_kernel(
    parts_ptr,  # [SPLITS, rows, D] fp32
    sums_ptr,  # [SPLITS, 2, rows] fp32
    out_ptr,  # [rows, D]
    rows,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
):
    row, rows = tl.program_id(0).to(tl.int64), rows.to(tl.int64)
    part, d = tl.arange(0, SPLITS), tl.arange(0, D)
    top = tl.load(sums_ptr + part * 2 * rows + row)
    factor = tl.exp2(top - tl.max(top, 0))
    total = tl.sum(tl.load(sums_ptr + (part * 2 + 1) * rows + row) * factor, 0)
    acc = tl.load(parts_ptr + ((part * rows + row) * D)[:, None] + d[None, :])
    out = tl.sum(acc * factor[:, None], 0) / total
    tl.store(out_ptr + row * D + d, out.to(out_ptr.dtype.element_ty))
