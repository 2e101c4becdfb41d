"""The attention of attention.py segment by segment, in plain torch and fp32: for CPUs, or anywhere.

A query's result depends on its request alone, bit for bit. For a canvas, that takes no more than
to look at each segment by itself. Causal segments are computed in blocks of queries that begin at
multiples of `_BLOCK` positions, each over the same span of keys: a query is computed from tensors
of the same shape however its request was cut into segments. What is not there is zero and unseen.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float32, Int32
from torch import Tensor

from dlm.kernels.paging import Pages, Segment

_BLOCK = 64  # positions


def attend(
    q: Float[Tensor, "n H D"],
    own_k: Float[Tensor, "n h D"],
    own_v: Float[Tensor, "n h D"],
    cached: "Cached",
    segment: Segment,
    window: int | None,
) -> Float32[Tensor, "n H D"]:
    """The queries of one segment; `own_k` and `own_v` are seen if it is a canvas."""
    position, end = segment.position, segment.position + segment.tokens
    if not segment.causal:
        first = 0 if window is None else max(0, position - window + 1)
        k, v = cached.span(first, position, position)
        return _attend(q.float(), torch.cat((k, own_k.float())), torch.cat((v, own_v.float())))
    out = q.new_empty(q.shape, dtype=torch.float32)
    for begin in range(position // _BLOCK * _BLOCK, end, _BLOCK):
        first = 0 if window is None else max(0, begin - window + 1)
        low, high = max(begin, position), min(begin + _BLOCK, end)
        here = slice(low - position, high - position)
        block = F.pad(q[here].float(), (0, 0, 0, 0, low - begin, begin + _BLOCK - high))
        k, v = cached.span(first, begin + _BLOCK, end)
        seen = causal_mask(begin - first, _BLOCK, window, q.device)
        out[here] = _attend(block, k, v, seen)[low - begin : high - begin]
    return out


class Cached:
    """The pages of one request, in fp32."""

    def __init__(self, pages: Pages, table: Int32[Tensor, " w"], first: int):
        """`table` are the request's pages from number `first` on."""
        self._pools = (pages.keys, pages.k_scale), (pages.values, pages.v_scale)
        self._table, self._first, self._page = table, first, pages.keys.shape[1]

    def span(self, first: int, last: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values `[last - first, h, D]` of positions `first` to `last - 1`; zero from
        `end` on, and in front of the pages that are held."""
        low = max(first // self._page, self._first)
        high = max(low, -(-min(last, end) // self._page))
        pages = self._table[low - self._first : high - self._first]
        start = max(first, low * self._page)
        stop = max(start, min(last, end))
        k, v = (
            F.pad(
                (_numbers(pool, pages) * scale)[start - low * self._page :][: stop - start],
                (0, 0, 0, 0, start - first, last - stop),
            )
            for pool, scale in self._pools
        )
        return k, v


def causal_mask(
    past: int, length: int, window: int | None, device: torch.device
) -> Bool[Tensor, "{length} {past+length}"]:
    """Who may see whom, for `length` tokens after `past` others."""
    query = torch.arange(past, past + length, device=device)[:, None]
    key = torch.arange(past + length, device=device)
    seen = key <= query
    return seen if window is None else seen & (query - key < window)


def _numbers(pool: Tensor, pages: Tensor) -> Float32[Tensor, "n h D"]:
    """Of some pages, token after token. Bytes are picked: not all of torch can pick fp8."""
    picked = pool.view(torch.uint8).index_select(0, pages).flatten(0, 1)
    return picked.view(torch.float8_e4m3fn if pool.dtype == torch.uint8 else pool.dtype).float()


def _attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> Tensor:
    """Queries [n, H, D], keys and values [T, h, D], who sees whom [n, T]. The queries of all heads
    that share a key head are rows of one matrix, so that no key is repeated."""
    n, H, D = q.shape
    group = H // k.shape[1]
    rows = q.view(n, -1, group, D).transpose(0, 1).flatten(1, 2)  # [h, n * group, D]
    mask = None if seen is None else seen.repeat_interleave(group, 0)[None]
    keys, values = k.transpose(0, 1)[None], v.transpose(0, 1)[None]
    out = F.scaled_dot_product_attention(rows[None], keys, values, attn_mask=mask, scale=1.0)[0]
    return out.unflatten(1, (n, group)).transpose(0, 1).flatten(1, 2)
