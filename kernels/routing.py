"""Routing of tokens to experts: the choice in one launch, the sort of choices in another.

The first turns a router's logits into the `k` best experts of each token and their weights, with
one program per token. Scores are softmax over all experts, or each expert's own sigmoid: then a
bias is added for the choice alone, and only experts of a token's best groups may be chosen
(arXiv:2412.19437). The second sorts all choices by expert, with one program per expert: it
counts the choices of smaller experts, which is where its own begin, then goes over all choices
again, in order, to write its own. That reads S numbers twice for each expert, from the L2 cache.
A grouped product over sorted slots has a grid of tiles (`grouped_launch`), and each of its programs
finds its expert and slots itself (`tile_of`).

Shapes: `N` tokens, `E` experts, `k` choices each; `S` = N k slots, slot s is choice s % k of token
s // k.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dlm.kernels.configurations import Configuration
from dlm.kernels.gpus import runs_kernel

_TINY = 1e-20  # added to a sum of weights, which may be 0
BLOCK = 2048  # slots that a program of the sort reads at a time; 8 per thread


class ExpertChoice(NamedTuple):
    """Experts of each token, the best first."""

    weight: Float32[Tensor, "N k"]
    expert: Int64[Tensor, "N k"]


class Route(NamedTuple):
    """Slots sorted by expert; slot s is choice s % k of token s // k."""

    order: Int64[Tensor, " S"]  # slots by expert; those of one expert in the order of tokens
    starts: Int64[Tensor, " E+1"]  # where each expert's begin in `order`, and the end of the last


def choose_reference(
    logits: Float[Tensor, "N E"], scale: Float[Tensor, " E"] | None, k: int
) -> ExpertChoice:
    """Define `choose` in plain torch."""
    p = logits.softmax(dim=-1, dtype=torch.float32)
    expert = _first(logits, k)
    weight = p.gather(-1, expert)
    weight = weight / weight.sum(dim=-1, keepdim=True)
    return ExpertChoice(weight if scale is None else weight * scale.float()[expert], expert)


def choose_in_groups_reference(
    logits: Float32[Tensor, "N E"],
    bias: Float32[Tensor, " E"],
    k: int,
    groups: int,
    groups_per_token: int,
    scale: float,
) -> ExpertChoice:
    """Define `choose_in_groups` in plain torch."""
    scores = logits.sigmoid()
    by_group = (scores + bias).unflatten(-1, (groups, -1))
    best = by_group.topk(min(2, by_group.shape[-1]), dim=-1).values.sum(-1)
    chosen = _first(best, groups_per_token)
    barred = torch.ones_like(best, dtype=torch.bool).scatter(-1, chosen, False)
    expert = _first(by_group.masked_fill(barred[..., None], -torch.inf).flatten(-2), k)
    weight = scores.gather(-1, expert)
    return ExpertChoice(weight / (weight.sum(dim=-1, keepdim=True) + _TINY) * scale, expert)


def _first(x: Tensor, count: int) -> Tensor:
    """Return the indices of the largest numbers of each row, of equal ones the lower first."""
    return x.sort(dim=-1, descending=True, stable=True).indices[..., :count]


def route(expert: Int64[Tensor, "N k"], experts: int) -> Route:
    """Sort slots by expert, without waiting for the device."""
    chosen, order = expert.flatten().sort(stable=True)
    return Route(order, torch.searchsorted(chosen, torch.arange(experts + 1, device=expert.device)))


def choose(
    logits: Float[Tensor, "N E"],
    scale: Float[Tensor, " E"] | None,
    k: int,
    by_kernel: bool | None = None,
) -> ExpertChoice:
    """Choose the `k` experts of each token with the highest logits; of equal ones, the lower.

    Weights are softmax over all experts in fp32, renormalised over the chosen, times each expert's
    `scale` if there is one. A NaN counts as the highest logit. `by_kernel` overrides the device, as
    in `dlm.kernels`. Raises `ValueError` for shapes, types and devices that do not fit.
    """
    if logits.ndim != 2 or logits.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(
            f"logits are [N, E] of bf16 or fp16, got {[*logits.shape]} of {logits.dtype}"
        )
    E = logits.shape[1]
    if not 1 <= k <= E or E > 4096:
        raise ValueError(f"k must be 1 to {E}, the experts, of at most 4096, got {k}")
    if scale is not None and (
        scale.shape != (E,) or not scale.is_floating_point() or scale.device != logits.device
    ):
        raise ValueError(
            f"scale is [{E}] floats on {logits.device}, got {[*scale.shape]} of {scale.dtype} on "
            f"{scale.device}"
        )
    if not runs_kernel(logits.device, by_kernel):
        return choose_reference(logits, scale, k)
    return ExpertChoice(*_choose(logits, scale, k))


def choose_in_groups(
    logits: Float32[Tensor, "N E"],
    bias: Float32[Tensor, " E"],
    k: int,
    groups: int,
    groups_per_token: int,
    scale: float,
    by_kernel: bool | None = None,
) -> ExpertChoice:
    """Choose `k` experts of each token by the sigmoids of their logits plus `bias`, the best first;
    of equal ones, the lower.

    They are of the `groups_per_token` best of `groups` equal groups; a group is as good as the sum
    of its two best experts, or as its only one. Weights are sigmoids without the bias, divided by
    their sum, times `scale`. A NaN counts as the highest. `by_kernel` overrides the device, as in
    `dlm.kernels`. Raises `ValueError` for shapes, types and devices that do not fit.
    """
    if logits.ndim != 2 or logits.dtype != torch.float32:
        raise ValueError(f"logits are [N, E] of fp32, got {[*logits.shape]} of {logits.dtype}")
    E = logits.shape[1]
    if groups < 1 or E % groups or E > 4096:
        raise ValueError(f"groups must divide the experts, of at most 4096, got {groups} of {E}")
    if not 1 <= groups_per_token <= groups:
        raise ValueError(f"groups_per_token must be 1 to {groups}, got {groups_per_token}")
    if not 1 <= k <= E // groups * groups_per_token:
        raise ValueError(
            f"k must be 1 to {E // groups * groups_per_token}, the experts of a token's groups, "
            f"got {k}"
        )
    if bias.shape != (E,) or bias.dtype != torch.float32 or bias.device != logits.device:
        raise ValueError(
            f"bias is [{E}] of fp32 on {logits.device}, got {[*bias.shape]} of {bias.dtype} on "
            f"{bias.device}"
        )
    options = k, groups, groups_per_token, scale
    if not runs_kernel(logits.device, by_kernel):
        return choose_in_groups_reference(logits, bias, *options)
    return ExpertChoice(*_choose_in_groups(logits, bias, *options))


def sort_slots(expert: Int64[Tensor, "N k"], experts: int, by_kernel: bool | None = None) -> Route:
    """Sort slots by expert, with exactly the result of `route`. Experts are 0 to `experts` - 1,
    which is not checked. `by_kernel` is as in `choose`. Raises `ValueError` for another shape or
    type."""
    if expert.ndim != 2 or expert.dtype != torch.int64 or experts < 1:
        raise ValueError(
            f"expert is [N, k] of int64, of 1 expert or more, got {[*expert.shape]} of "
            f"{expert.dtype}, of {experts}"
        )
    if not runs_kernel(expert.device, by_kernel):
        return route(expert, experts)
    return Route(*_sort_slots(expert, experts))


def grouped_launch(
    tile: Configuration, rows: int, slots: int, experts: int
) -> tuple[Any, dict[str, Any]]:
    """Return the grid and the constants of a grouped product: a program for each block of `rows`
    and for each tile that slots can need, however experts share them."""
    tiles = -(-slots // tile["BLOCK_N"]) + min(experts, slots)
    grid = triton.cdiv(rows, tile["BLOCK_M"]), tiles
    return grid, {**tile, "EXPERTS": triton.next_power_of_2(experts)}


@torch.library.custom_op("dlm::choose", mutates_args=())
def _choose(logits: Tensor, scale: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    N, E = logits.shape
    weight, expert = _choice(logits, k)
    blocks = triton.next_power_of_2(E), triton.next_power_of_2(k)
    options: dict[str, Any] = {"BLOCK": blocks[0], "K": blocks[1], "num_warps": 1}
    inputs = logits.contiguous(), scale if scale is None else scale.contiguous()
    with torch.cuda.device_of(logits):
        _choose_kernel[N,](*inputs, weight, expert, E, k, **options)
    return weight, expert


@_choose.register_fake
def _(logits: Tensor, scale: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    return _choice(logits, k)


@torch.library.custom_op("dlm::choose_in_groups", mutates_args=())
def _choose_in_groups(
    logits: Tensor, bias: Tensor, k: int, groups: int, groups_per_token: int, scale: float
) -> tuple[Tensor, Tensor]:
    N, E = logits.shape
    weight, expert = _choice(logits, k)
    size = E // groups
    options: dict[str, Any] = {"GROUPS": groups, "SIZE": size, "K": triton.next_power_of_2(k)}
    options |= {"ROWS": triton.next_power_of_2(groups), "COLUMNS": triton.next_power_of_2(size)}
    options["num_warps"] = 1
    inputs = logits.contiguous(), bias.contiguous(), weight, expert
    with torch.cuda.device_of(logits):
        _choose_in_groups_kernel[N,](*inputs, k, groups_per_token, scale, **options)
    return weight, expert


@_choose_in_groups.register_fake
def _(logits: Tensor, bias: Tensor, k: int, *_: Any) -> tuple[Tensor, Tensor]:
    return _choice(logits, k)


def _choice(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    shape = len(logits), k
    return (
        torch.empty(shape, dtype=torch.float32, device=logits.device),
        torch.empty(shape, dtype=torch.int64, device=logits.device),
    )


@torch.library.custom_op("dlm::sort_slots", mutates_args=())
def _sort_slots(expert: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    order, starts = _route(expert, experts)
    constants: dict[str, Any] = {"BLOCK": BLOCK, "num_warps": 8}
    inputs = expert.contiguous(), order, starts, expert.numel(), experts
    with torch.cuda.device_of(expert):
        _sort_kernel[experts,](*inputs, **constants)
    return order, starts


@_sort_slots.register_fake
def _(expert: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    return _route(expert, experts)


def _route(expert: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    return expert.new_empty(expert.numel()), expert.new_empty(experts + 1)


@triton.jit
def _choose_kernel(
    logits_ptr,  # [N, E] bf16 or fp16
    scale_ptr,  # [E] any float; None: 1
    weight_ptr,  # [N, k] fp32
    expert_ptr,  # [N, k] int64
    E,
    k,
    BLOCK: tl.constexpr,  # E or more
    K: tl.constexpr,  # k or more
):
    """Choose by integers that have the order of the logits: 16 bits of a logit, then BLOCK - 1
    minus its expert. The largest is the next choice, even among equal logits."""
    least = -2147483648
    row, e, choice = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK), tl.arange(0, K)
    x = tl.load(logits_ptr + row * E + e, mask=e < E, other=0.0)
    x = tl.where(x.to(tl.float32) == 0.0, tl.zeros_like(x), x)  # -0 is equal to 0
    bits = x.to(tl.int16, bitcast=True).to(tl.int32)
    size = bits ^ ((bits >> 15) & 0x7FFF)  # negative numbers with larger bits are smaller
    size = tl.where(x.to(tl.float32) != x.to(tl.float32), 0x7FFF, size)
    left = tl.where(e < E, size * 65536 + (65535 - e), least)
    found = tl.full([K], least, tl.int32)
    for j in range(k):
        best = tl.max(left, 0)
        found = tl.where(choice == j, best, found)
        left = tl.where(left == best, least, left)
    expert = 65535 - (found & 0xFFFF)
    there = choice < k
    size = found >> 16
    bits = size ^ ((size >> 15) & 0x7FFF)
    chosen = bits.to(tl.int16).to(x.dtype, bitcast=True).to(tl.float32)
    top = tl.sum(tl.where(choice == 0, chosen, 0.0), 0)
    p = tl.where(there, tl.exp(chosen - top), 0.0)
    at = row * k + choice
    weight = p / tl.sum(p, 0)
    if scale_ptr is not None:
        weight *= tl.load(scale_ptr + expert, mask=there, other=0.0).to(tl.float32)
    tl.store(weight_ptr + at, weight, mask=there)
    tl.store(expert_ptr + at, expert.to(tl.int64), mask=there)


@triton.jit
def _choose_in_groups_kernel(
    logits_ptr,  # [N, GROUPS * SIZE] fp32
    bias_ptr,  # [GROUPS * SIZE] fp32
    weight_ptr,  # [N, k] fp32
    expert_ptr,  # [N, k] int64
    k,
    groups_per_token,
    scale,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,  # experts of a group
    K: tl.constexpr,  # k or more
    ROWS: tl.constexpr,  # GROUPS or more
    COLUMNS: tl.constexpr,  # SIZE or more
):
    least, last = float("-inf"), ROWS * COLUMNS
    row, choice = tl.program_id(0).to(tl.int64), tl.arange(0, K)
    group, place = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    there, e = (group < GROUPS) & (place < SIZE), group * SIZE + place
    x = tl.load(logits_ptr + row * (GROUPS * SIZE) + e, mask=there, other=0.0)
    score = 1.0 / (1.0 + tl.exp(-x))
    biased = score + tl.load(bias_ptr + e, mask=there, other=0.0)
    biased = tl.where(biased == biased, biased, float("inf"))  # a NaN
    biased = tl.where(there, biased, least)

    good = tl.max(biased, 1)
    if SIZE > 1:
        best = tl.min(tl.where(biased == good[:, None], place, COLUMNS), 1)
        good += tl.max(tl.where(place == best[:, None], least, biased), 1)
    index, allowed = tl.arange(0, ROWS), tl.zeros([ROWS], tl.int32)
    open_groups = index < GROUPS
    for _ in range(groups_per_token):
        size = tl.where(open_groups, good, least)
        most = tl.max(size, 0)
        chosen = tl.min(tl.where(open_groups & (size == most), index, ROWS), 0)
        allowed = tl.where(index == chosen, 1, allowed)
        open_groups = open_groups & (index != chosen)

    open_experts = there & (allowed[:, None] > 0)
    chosen_experts, weight = tl.zeros([K], tl.int32), tl.zeros([K], tl.float32)
    for j in range(k):
        size = tl.where(open_experts, biased, least)
        most = tl.max(tl.max(size, 1), 0)
        candidate = tl.where(open_experts & (size == most), e, last)
        expert = tl.min(tl.min(candidate, 1), 0)
        mine = e == expert
        chosen_experts = tl.where(choice == j, expert, chosen_experts)
        own = tl.sum(tl.sum(tl.where(mine & there, score, 0.0), 1), 0)
        weight = tl.where(choice == j, own, weight)
        open_experts = open_experts & (e != expert)
    at, real = row * k + choice, choice < k
    total = tl.sum(tl.where(real, weight, 0.0), 0) + 1e-20
    tl.store(weight_ptr + at, weight / total * scale, mask=real)
    tl.store(expert_ptr + at, chosen_experts.to(tl.int64), mask=real)


@triton.jit
def _sort_kernel(
    expert_ptr,  # [S] int64
    order_ptr,  # [S] int64
    starts_ptr,  # [experts + 1] int64
    slots,
    experts,
    BLOCK: tl.constexpr,
):
    mine, at = tl.program_id(0), tl.arange(0, BLOCK)
    smaller = tl.zeros([BLOCK], tl.int32)
    for first in range(0, slots, BLOCK):
        there = first + at < slots
        expert = tl.load(expert_ptr + first + at, mask=there, other=experts)
        smaller += (expert < mine).to(tl.int32)
    start = tl.sum(smaller, 0)
    tl.store(starts_ptr + mine, start)
    if mine == experts - 1:
        tl.store(starts_ptr + experts, slots)
    for first in range(0, slots, BLOCK):
        there = first + at < slots
        expert = tl.load(expert_ptr + first + at, mask=there, other=experts)
        is_mine = (expert == mine).to(tl.int32)
        place = start + tl.cumsum(is_mine, 0) - 1
        tl.store(order_ptr + place, (first + at).to(tl.int64), mask=is_mine != 0)
        start += tl.sum(is_mine, 0)


@triton.jit
def tile_of(
    starts_ptr, experts, EXPERTS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr
):
    """Return the program's tile: its expert, or `experts` if there is none; its slots and the end
    of the expert's slots; its rows of weights."""
    index, tile = tl.arange(0, EXPERTS), tl.program_id(1)
    start = tl.load(starts_ptr + index, mask=index < experts, other=0).to(tl.int32)
    end = tl.load(starts_ptr + index + 1, mask=index < experts, other=0).to(tl.int32)
    tiles = (end - start + BLOCK_N - 1) // BLOCK_N
    last = tl.cumsum(tiles, 0)
    expert = tl.sum(((last <= tile) & (index < experts)).to(tl.int32), 0)
    here = index == expert
    first = tl.sum(tl.where(here, start + (tile - last + tiles) * BLOCK_N, 0), 0)
    n = first + tl.arange(0, BLOCK_N)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    return expert, n, tl.sum(tl.where(here, end, 0), 0), m
