"""Attention over a paged cache in plain torch, on any device: segment by segment, in fp32.

A query's result depends on its request alone, bit for bit. Canvases are simply computed one by one.
Causal segments are computed in blocks of queries that begin at multiples of `_BLOCK` positions,
each over the same span of keys: a query is computed from tensors of the same shape however its
request was cut into segments. Missing keys are zero and masked. An image is always one segment. A
block that is cached whole is computed by itself. What a token sees is defined in `attention.py`.

Shapes: `N` tokens of `H` heads of `D` numbers, `h` heads of keys and values, pages of `p` tokens.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float32, Int32
from torch import Tensor

from dlm.kernels.paging import CAUSAL, IMAGE, Pages, Paging, Segment

_BLOCK = 64  # positions of a block of queries


def attention_by_segment(
    q: Float[Tensor, "N H D"],
    k: Float[Tensor, "N h D"],
    v: Float[Tensor, "N h D"],
    pages: Pages,
    paging: Paging,
    window: int | None,
    block: int,
) -> Float[Tensor, "N H D"]:
    """Compute `attention_reference` in q's type, for valid arguments of `attention`. Nothing is
    checked."""
    out = torch.zeros_like(q)
    for whole, table in zip(paging.segments, paging.table, strict=True):
        cached = partial(_cached, pages, table, whole.page)
        for segment in _blocks(whole, block):
            rows = slice(segment.row, segment.row + segment.tokens)
            out[rows] = _of_segment(q[rows], k[rows], v[rows], cached, segment, window)
    return out


def _blocks(segment: Segment, block: int) -> Iterator[Segment]:
    """Yield the blocks of a causal segment whose tokens see each other; any other as it is."""
    if segment.kind != CAUSAL or block == 1:
        yield segment
        return
    for begin in range(0, segment.tokens, block):
        row, position = segment.row + begin, segment.position + begin
        yield segment._replace(row=row, tokens=block, position=position, kind=IMAGE)


def _of_segment(
    q: Float[Tensor, "n H D"],
    own_k: Float[Tensor, "n h D"],
    own_v: Float[Tensor, "n h D"],
    cached: Callable[[int, int, int], tuple[Tensor, Tensor]],
    segment: Segment,
    window: int | None,
) -> Float32[Tensor, "n H D"]:
    """Return attention for the queries of one segment; a canvas also sees `own_k` and `own_v`."""
    position, end = segment.position, segment.position + segment.tokens
    if segment.kind != CAUSAL:
        first = 0 if window is None else max(0, position - window + 1)
        if segment.kind == IMAGE:
            seen = _mask(position - first, segment.tokens, window, True, q.device)
            return _attend(q.float(), *cached(first, end, end), seen)
        k, v = cached(first, position, position)
        return _attend(q.float(), torch.cat((k, own_k.float())), torch.cat((v, own_v.float())))
    out = q.new_empty(q.shape, dtype=torch.float32)
    for begin in range(position // _BLOCK * _BLOCK, end, _BLOCK):
        first = 0 if window is None else max(0, begin - window + 1)
        low, high = max(begin, position), min(begin + _BLOCK, end)
        here = slice(low - position, high - position)
        block = F.pad(q[here].float(), (0, 0, 0, 0, low - begin, begin + _BLOCK - high))
        k, v = cached(first, begin + _BLOCK, end)
        seen = _mask(begin - first, _BLOCK, window, False, q.device)
        out[here] = _attend(block, k, v, seen)[low - begin : high - begin]
    return out


def _cached(
    pages: Pages, table: Int32[Tensor, " w"], oldest: int, first: int, last: int, end: int
) -> tuple[Tensor, Tensor]:
    """Return the keys and values `[last - first, h, D]` of positions `first` to `last - 1` in fp32;
    zeros from `end` on, and before page `oldest` of the request, the first one in `table`."""
    page = pages.keys.shape[1]
    low = max(first // page, oldest)
    high = max(low, -(-min(last, end) // page))
    indices = table[low - oldest : high - oldest]
    start = max(first, low * page)
    stop = max(start, min(last, end))
    k, v = (
        F.pad(
            (_numbers(pool, indices) * scale)[start - low * page :][: stop - start],
            (0, 0, 0, 0, start - first, last - stop),
        )
        for pool, scale in ((pages.keys, pages.k_scale), (pages.values, pages.v_scale))
    )
    return k, v


def _mask(
    past: int, length: int, window: int | None, image: bool, device: torch.device
) -> Bool[Tensor, "{length} {past+length}"]:
    """Return which keys each of `length` tokens sees, after `past` others. The tokens of an `image`
    see all of it; others see those up to themselves."""
    query = torch.arange(past, past + length, device=device)[:, None]
    key = torch.arange(past + length, device=device)
    near = query - key < (window or past + length)
    return near | (key >= past) if image else near & (key <= query)


def _numbers(pool: Tensor, pages: Tensor) -> Float32[Tensor, "n h D"]:
    """Return the numbers of pages, token after token. Bytes are gathered, since not every device's
    torch gathers fp8."""
    numbers = pool.view(torch.uint8).index_select(0, pages).flatten(0, 1)
    return numbers.view(torch.float8_e4m3fn if pool.dtype == torch.uint8 else pool.dtype).float()


def _attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> Tensor:
    """Return attention of queries [n, H, D] to keys and values [T, h, D]; `seen` [n, T] is the
    mask. Queries of all heads that share a key head are rows of one matrix, so that no key is
    repeated."""
    n, H, D = q.shape
    group = H // k.shape[1]
    rows = q.view(n, -1, group, D).transpose(0, 1).flatten(1, 2)  # [h, n * group, D]
    mask = None if seen is None else seen.repeat_interleave(group, 0)[None]
    keys, values = k.transpose(0, 1)[None], v.transpose(0, 1)[None]
    out = F.scaled_dot_product_attention(rows[None], keys, values, attn_mask=mask, scale=1.0)[0]
    return out.unflatten(1, (n, group)).transpose(0, 1).flatten(1, 2)
