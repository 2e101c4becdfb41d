"""Kernels at a model's sizes, each with its reference and with the same by torch alone.

Nothing is timed here: `bench_kernels.py` does that on a GPU. On a CPU, where launchers run their
references, a test checks that all three of a case return the same.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from dlm.kernels.attention import attention, attention_reference
from dlm.kernels.moe import Stack, matrix, moe, moe_reference
from dlm.kernels.norms import AttentionGains, LayerGains, add_attention, end_layer, gated
from dlm.kernels.nvfp4 import (
    NVFP4,
    dequantize,
    matmul_reference,
    matmul_w4a4,
    quantize,
    quantize_reference,
    rounded,
)
from dlm.kernels.paging import CANVAS, Pages, Paging, Segment
from dlm.kernels.residual import add_and_norm
from dlm.kernels.rotary import norm_and_rotate, rotate_and_scale
from dlm.kernels.routing import choose, choose_in_groups, sort_slots
from dlm.kernels.tiles import matmul_w4a16, tiled, tiled_matrix
from dlm.kernels.vocab import vocab_pass, vocab_pass_reference
from dlm.kernels.vocab_rows import RowMasks

_SOFTCAP, _HEAT = 30.0, 0.6
_OF_STEP: dict[str, Any] = {"softcap": _SOFTCAP, "threshold": 2.0**-20, "k": 128}  # a step's
_MOST_SCALE = 6 * 448
_EPS = 1e-6  # of norms


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a model, multiples of 64; by default the 26B's, with a canvas after 8,192 tokens."""

    rows: int = 256
    canvas: int = 256  # rows of a canvas
    context: int = 8192
    window: int = 1024
    vocab: int = 262_144
    hidden: int = 2816
    dense: int = 2112
    expert: int = 704
    experts: int = 128
    chosen: int = 8
    heads: int = 16
    sliding: tuple[int, int] = (8, 256)  # heads of keys and values, and numbers of each
    full: tuple[int, int] = (2, 512)
    # Of plain decoders, as Nemotron-Labs-Diffusion, SDAR and LLaDA2 have them.
    plain_canvas: int = 32
    plain_heads: int = 32
    plain: tuple[int, int] = (8, 128)
    groups: tuple[int, int] = (8, 4)  # of experts, and those of a token


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """One kernel at one shape. `run`, `reference` and `composed` should return the same."""

    name: str
    shape: str
    run: Callable[[], Tensor]
    reference: Callable[[], Tensor]
    composed: Callable[[], Tensor]
    moved: float  # bytes that have to be read or written
    operations: float  # multiplications and additions of matrices


def cases(sizes: Sizes, device: torch.device) -> Iterator[KernelCase]:
    """Yield all cases that `device` can run, one by one, since each holds memory of its own."""
    rng = torch.Generator(device).manual_seed(0)
    cuda = device.type == "cuda"
    major, minor = torch.cuda.get_device_capability(device) if cuda else (0, 0)
    sm = 10 * major + minor
    for masked in (False, True):
        yield _vocabulary(sizes, masked, rng)
    yield _w4a16(sizes, rng)
    if sm >= 89 or not cuda:
        yield _quantised(sizes, rng)
    if sm in (100, 120) or not cuda:
        yield _w4a4(sizes, rng)
    yield _experts(sizes, "bf16", rng)
    yield _experts(sizes, "NVFP4", rng)
    if sm in (100, 120) or not cuda:
        yield _experts(sizes, "W4A4", rng)
    yield from _between(sizes, rng)
    for stored in (torch.bfloat16, torch.float8_e4m3fn):
        yield _attention(sizes, "sliding", sizes.sliding, sizes.window, stored, rng)
        yield _attention(sizes, "full", sizes.full, None, stored, rng)
        plain = replace(sizes, heads=sizes.plain_heads, canvas=sizes.plain_canvas)
        yield _attention(plain, "plain", sizes.plain, None, stored, rng)


def _vocabulary(sizes: Sizes, masked: bool, rng: torch.Generator) -> KernelCase:
    """Return the vocabulary pass; if `masked`, each row allows every other token on average."""
    n, V = sizes.rows, sizes.vocab
    logits = (_normal(rng, n, V) * 8).bfloat16()
    inverse = torch.full((n,), 1 / _HEAT, device=rng.device)
    uniform = torch.rand(n, generator=rng, device=rng.device)
    words = torch.randint(2**31, (n, -(-V // 32)), generator=rng, device=rng.device)
    masks = RowMasks(words.int(), torch.arange(n, device=rng.device)) if masked else None
    args = logits, inverse, uniform, masks
    token = torch.arange(V, device=rng.device)

    def composed() -> Tensor:
        x = _SOFTCAP * torch.tanh(logits.float() / _SOFTCAP) * inverse[:, None]
        if masks:
            allowed = (masks.bitmask[:, token // 32] >> token % 32 & 1).bool()
            x = x.masked_fill(~allowed, -torch.inf)
        p = x.softmax(-1)
        _ = x.argmax(-1), p.topk(min(V, 128)), torch.searchsorted(p.cumsum(-1), uniform[:, None])
        return torch.special.entr(p).sum(-1)

    return KernelCase(
        name=f"vocabulary pass{', masked' if masked else ''}",
        shape=f"{n} x {V} bf16",
        run=lambda: vocab_pass(*args, **_OF_STEP).entropy,
        reference=lambda: vocab_pass_reference(*args, **_OF_STEP).entropy,
        composed=composed,
        moved=logits.nbytes + (masks.bitmask.nbytes if masks else 0),
        operations=0,
    )


def _w4a16(sizes: Sizes, rng: torch.Generator) -> KernelCase:
    x, w = (
        _normal(rng, sizes.rows, sizes.hidden).bfloat16(),
        _matrix(rng, sizes.dense, sizes.hidden),
    )
    prepared = tiled_matrix(w) if x.is_cuda else w  # as a model has it
    return KernelCase(
        name="NVFP4 product, W4A16",
        shape=f"{sizes.rows} x {sizes.hidden} x {sizes.dense}",
        run=lambda: matmul_w4a16(x, prepared),
        reference=lambda: matmul_reference(x, w),
        composed=lambda: F.linear(x, dequantize(w, torch.bfloat16)),
        moved=_size(x, w) + 2 * sizes.rows * sizes.dense,
        operations=2 * x.numel() * sizes.dense,
    )


def _quantised(sizes: Sizes, rng: torch.Generator) -> KernelCase:
    x = _normal(rng, sizes.rows, sizes.hidden).bfloat16()
    scale = x.abs().amax().float() / _MOST_SCALE
    return KernelCase(
        name="NVFP4 of activations",
        shape=f"{sizes.rows} x {sizes.hidden}",
        run=lambda: quantize(x, scale).packed,
        reference=lambda: quantize_reference(x, scale).packed,
        composed=lambda: quantize_reference(x, scale).packed,
        moved=x.nbytes * (1 + 9 / 32),
        operations=0,
    )


def _w4a4(sizes: Sizes, rng: torch.Generator) -> KernelCase:
    x, w = (
        _normal(rng, sizes.rows, sizes.hidden).bfloat16(),
        _matrix(rng, sizes.dense, sizes.hidden),
    )
    scale = x.abs().amax().float() / _MOST_SCALE

    def composed() -> Tensor:
        return F.linear(rounded(x, scale, x.dtype), dequantize(w, x.dtype))

    return KernelCase(
        name="NVFP4 product, W4A4",
        shape=f"{sizes.rows} x {sizes.hidden} x {sizes.dense}",
        run=lambda: matmul_w4a4(x, w, scale),
        reference=lambda: matmul_reference(rounded(x, scale), w).bfloat16(),
        composed=composed,
        moved=_size(x, w) + 2 * sizes.rows * sizes.dense,
        operations=2 * x.numel() * sizes.dense,
    )


def _experts(
    sizes: Sizes, kind: Literal["bf16", "NVFP4", "W4A4"], rng: torch.Generator
) -> KernelCase:
    """Return the experts' case, with experts chosen at random."""
    N, H, I, E, k = sizes.rows, sizes.hidden, sizes.expert, sizes.experts, sizes.chosen  # noqa: E741
    x = _normal(rng, N, H).bfloat16()
    weight = torch.rand(N, k, generator=rng, device=rng.device) / k
    expert = torch.rand(N, E, generator=rng, device=rng.device).argsort(-1)[:, :k].contiguous()
    gate_up: Stack
    down: Stack
    if kind == "bf16":
        gate_up = (_normal(rng, E, 2 * I, H) * H**-0.5).bfloat16()
        down = (_normal(rng, E, H, I) * I**-0.5).bfloat16()
    else:
        gate_up, down = _stack(rng, E, 2 * I, H, 2), _stack(rng, E, H, I, 1)
    args = x, weight, expert, gate_up, down
    if kind == "W4A4":
        largest = torch.stack((x.abs().amax().float(), torch.tensor(8.0, device=x.device)))
        args = *args, largest / _MOST_SCALE
        run = partial(moe, *args)
    else:
        stacks = [tiled(each) if isinstance(each, NVFP4) else each for each in (gate_up, down)]
        first, second = stacks if x.is_cuda else (gate_up, down)  # as a model has them
        run = partial(moe, x, weight, expert, first, second)
    hit = len(expert.unique()) / E
    return KernelCase(
        name=f"experts, {kind}",
        shape=f"{N} x {H}, {k} of {E} of {I}",
        run=run,
        reference=partial(moe_reference, *args),
        composed=partial(_looped, *args),
        moved=hit * (_size(gate_up) + _size(down)) + 2 * x.nbytes,
        operations=2 * N * k * 3 * H * I,
    )


def _looped(
    x: Tensor,
    weight: Tensor,
    expert: Tensor,
    gate_up: Stack,
    down: Stack,
    input_scales: Tensor | None = None,
) -> Tensor:
    """Run expert after expert, like transformers' eager experts."""

    def given(rows: Tensor, product: int) -> Tensor:
        return rows if input_scales is None else rounded(rows, input_scales[product], x.dtype)

    out = torch.zeros_like(x)
    for e in expert.unique().tolist():
        token, choice = (expert == e).nonzero(as_tuple=True)
        w = matrix(gate_up, e).to(x.dtype)
        gate, up = F.linear(given(x[token], 0), w).chunk(2, -1)
        inner = given(F.gelu(gate, approximate="tanh") * up, 1)
        y = F.linear(inner, matrix(down, e).to(x.dtype))
        out.index_add_(0, token, (y * weight[token, choice, None]).to(x.dtype))
    return out


def _between(sizes: Sizes, rng: torch.Generator) -> Iterator[KernelCase]:
    """Yield the operations between a layer's products, whose references are torch alone."""
    N, H, M, E, k = sizes.rows, sizes.hidden, sizes.dense, sizes.experts, sizes.chosen
    h, D = sizes.sliding
    x, attended, dense, routed = (_normal(rng, N, H).bfloat16() for _ in range(4))
    gains = [1 + _normal(rng, H).bfloat16() / 8 for _ in range(4)]
    choices, scalar = _normal(rng, N, k, H).bfloat16(), torch.ones_like(x[:, :1])
    parts = [sizes.heads * D, h * D, h * D]
    heads = _normal(rng, N, sum(parts)).bfloat16()
    q, k_heads, v = (part.unflatten(-1, (-1, D)) for part in heads.split(parts, -1))
    angle = _normal(rng, N, 1, D)
    gate, up = _normal(rng, N, 2 * M).bfloat16().chunk(2, -1)
    logits, scale = _normal(rng, N, E).bfloat16(), torch.ones(E, device=rng.device)
    expert = choose(logits, scale, k).expert
    heads_in = q, k_heads, v, gains[0][:D], gains[1][:D], angle.cos(), angle.sin(), _EPS
    ending = LayerGains(*gains), scalar, _EPS

    def case(name: str, shape: str, run: Callable[..., Tensor], moved: float) -> KernelCase:
        """Return a case without products; `run` takes `by_kernel`."""
        by_torch = partial(run, by_kernel=False)
        both = {"reference": by_torch, "composed": by_torch}
        return KernelCase(name=name, shape=shape, run=run, moved=moved, operations=0, **both)

    yield case(
        "norms after attention",
        f"{N} x {H}",
        lambda **by: add_attention(x, attended, AttentionGains(*gains), _EPS, **by).router,
        6 * x.nbytes,
    )
    for of, given in (("summed", routed), ("by choice", choices)):
        yield case(
            f"norms at a layer's end, {of}",
            f"{N} x {H}" + f", {k} choices" * (given is choices),
            lambda given=given, **by: end_layer(x, dense, given, *ending, **by).normed,
            4 * x.nbytes + given.nbytes,
        )
    yield case(
        "norms and rotation of heads",
        f"{N} x {sizes.heads} + 2 x {h} heads of {D}",
        lambda **by: norm_and_rotate(*heads_in, **by)[0],
        2 * heads.nbytes + 2 * angle.nbytes,
    )
    yield case(
        "rotation and scale of heads",
        f"{N} x {sizes.plain_heads} + 2 x {sizes.plain[0]} heads of {sizes.plain[1]}",
        _rotation(sizes, rng),
        4 * N * (sizes.plain_heads + 2 * sizes.plain[0]) * sizes.plain[1],
    )
    for of, routed_choices in (("a result", None), ("by choice", choices)):
        yield case(
            f"sum and norm, {of}",
            f"{N} x {H}" + f", {k} choices" * (routed_choices is not None),
            lambda routed_choices=routed_choices, **by: (
                add_and_norm(x, dense, routed_choices, gains[0], _EPS, **by).normed
            ),
            4 * x.nbytes + (0 if routed_choices is None else choices.nbytes),
        )
    for name, activation in (("GELU", "gelu_tanh"), ("SiLU", "silu")):
        yield case(
            f"{name} of a gate",
            f"{N} x {M}",
            lambda activation=activation, **by: gated(gate, up, activation, **by),
            3 * gate.nbytes,
        )
    yield case(
        "choice of experts",
        f"{N}, {k} of {E}",
        lambda **by: choose(logits, scale, k, **by).weight,
        logits.nbytes + 12 * expert.numel(),
    )
    scores, bias = logits.float(), torch.zeros(E, device=rng.device)
    groups, per_token = sizes.groups
    yield case(
        "choice of experts in groups",
        f"{N}, {k} of {E}, {per_token} of {groups} groups",
        lambda **by: choose_in_groups(scores, bias, k, groups, per_token, 2.5, **by).weight,
        scores.nbytes + 12 * expert.numel(),
    )
    yield case(
        "sort of slots",
        f"{N} x {k}, of {E}",
        lambda **by: sort_slots(expert, E, **by).order,
        2 * expert.nbytes,
    )


def _rotation(sizes: Sizes, rng: torch.Generator) -> Callable[..., Tensor]:
    """Return the norms, rotation and scale of a plain decoder's heads."""
    N, Hq, (h, D) = sizes.rows, sizes.plain_heads, sizes.plain
    rows = _normal(rng, N, (Hq + 2 * h) * D).bfloat16()
    q, k, v = (part.unflatten(-1, (-1, D)) for part in rows.split([Hq * D, h * D, h * D], dim=-1))
    angle, scale = _normal(rng, N, 1, D), torch.full((N, 1, 1), D**-0.5, device=rng.device)
    gain = 1 + _normal(rng, D).bfloat16() / 8
    args = q, k, v, (gain, gain), angle.cos(), angle.sin(), scale, _EPS
    return lambda **by: rotate_and_scale(*args, **by)[0]


def _attention(
    sizes: Sizes,
    layer: str,
    heads: tuple[int, int],
    window: int | None,
    stored: torch.dtype,
    rng: torch.Generator,
) -> KernelCase:
    """Return attention of canvases after `context` tokens each, in pages anywhere in the pool."""
    (h, D), N, L, p = heads, sizes.rows, sizes.canvas, 16
    q = (_normal(rng, N, sizes.heads, D) * D**-0.5).bfloat16()
    k, v = _normal(rng, 2, N, h, D).bfloat16()
    oldest = 0 if window is None else max(0, sizes.context - window + 1)
    width = -(-sizes.context // p) - oldest // p
    segments = tuple(Segment(row, L, sizes.context, CANVAS, oldest // p) for row in range(0, N, L))
    count, one = len(segments), torch.ones(1, device=rng.device)
    order = torch.rand(count * width, generator=rng, device=rng.device).argsort()
    pool = _normal(rng, 2, count * width, p, h, D).to(stored)
    none = torch.empty(0, dtype=torch.int64, device=rng.device)
    paging = Paging(
        segments=segments,
        numbers=torch.tensor(segments, dtype=torch.int32, device=rng.device).T.contiguous(),
        table=order.int().view(count, width),
        rows=none,
        places=none,
    )
    args = q, k, v, Pages(pool[0], pool[1], one, one), paging, window

    def composed() -> Tensor:
        """Gather the pages and call torch's attention."""
        found = []
        for segment, table in zip(segments, paging.table, strict=True):
            rows = slice(segment.row, segment.row + L)
            there = slice(oldest - segment.page * p, sizes.context - segment.page * p)
            keys, values = (
                torch.cat((each[table].flatten(0, 1)[there].to(q.dtype), own)).transpose(0, 1)
                for each, own in ((pool[0], k[rows]), (pool[1], v[rows]))
            )
            found.append(
                F.scaled_dot_product_attention(
                    q[rows].transpose(0, 1), keys, values, scale=1.0, enable_gqa=True
                ).transpose(0, 1)
            )
        return torch.cat(found)

    seen = sizes.context - oldest
    return KernelCase(
        name=f"attention, {layer}, {'fp8' if stored.itemsize == 1 else 'bf16'}",
        shape=f"{count} x {L} after {seen}, {sizes.heads} heads on {h} of {D}",
        run=lambda: attention(*args),
        reference=lambda: attention_reference(*args),
        composed=composed,
        moved=2 * count * seen * h * D * stored.itemsize + _size(q, k, v, q),
        operations=4 * N * (seen + L) * sizes.heads * D,
    )


def _normal(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng, device=rng.device)


def _matrix(rng: torch.Generator, M: int, K: int) -> NVFP4:
    return quantize(_normal(rng, M, K) * K**-0.5)


def _stack(rng: torch.Generator, E: int, R: int, C: int, parts: int) -> NVFP4:
    """Return random codes with random scales, since quantising a gigabyte takes longer."""
    packed = torch.randint(256, (E, R, C // 2), generator=rng, device=rng.device, dtype=torch.uint8)
    scale = 0.5 + torch.rand(E, R, C // 16, generator=rng, device=rng.device)
    scale_2 = torch.full((E, parts), 0.3 * C**-0.5, device=rng.device)
    return NVFP4(packed, scale.to(torch.float8_e4m3fn), scale_2)


def _size(*stacks: Stack) -> int:
    """Return the bytes of stacks."""
    return sum(
        tensor.nbytes
        for stack in stacks
        for tensor in ([stack] if isinstance(stack, Tensor) else stack)
    )
