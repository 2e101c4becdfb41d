"""A small cache whose keys and values tell what they were computed from.

A token's key and value in a real model follow from all tokens up to it; here they spell a hash of
them, so that whatever lies in the wrong place shows.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from dlm.models.cache import KVCache
from dlm.models.pages import Pass
from dlm.models.shape import LayerConfig, ModelShape

PAGE, WINDOW, CANVAS, SLOTS, DIM = 4, 6, 8, 4, 16


def config() -> ModelShape:
    kinds = ("sliding_attention", "full_attention", "sliding_attention")
    layers = [LayerConfig(kind=kind, head_dim=DIM, kv_heads=1) for kind in kinds]
    return ModelShape(
        **{"vocab_size": 9, "hidden_size": 16, "heads": 1, "layers": tuple(layers)},
        **{"window": WINDOW, "canvas_length": CANVAS, "max_positions": 1000},
    )


def make(capacity: int | None = None, segment: int | None = None, slots: int = SLOTS) -> KVCache:
    device = torch.device("cpu")
    cache = KVCache(config(), slots, torch.float32, device, capacity, segment, page=PAGE)
    for pool in cache._pools.values():
        for tensors in (pool._keys, pool._values):
            for tensor in tensors:
                tensor.fill_(torch.nan)
    return cache


def keys_of(tokens: Sequence[int]) -> Tensor:
    """For each token a row of `DIM` numbers that all tokens up to it decide."""
    pairs = accumulate(tokens, _next, initial=(0, 0))
    return torch.tensor([*pairs][1:], dtype=torch.float32).repeat(1, DIM // 2).view(-1, DIM)


def _next(last: tuple[int, int], token: int) -> tuple[int, int]:
    return (last[0] * 31 + token + 1) % 65521, (last[1] * 37 + token + 1) % 65519


def run(
    cache: KVCache, tokens: Mapping[int, Sequence[int]], encode: Mapping[int, Sequence[int]],
    canvases: Sequence[int] = (),
) -> Pass:  # fmt: skip
    """One pass; `tokens` are what each slot holds. Whatever a token is to see must be there."""
    plan = cache.plan(encode, canvases, CANVAS)
    after = {slot: [*tokens[slot], *encode.get(slot, ())] for slot in tokens}
    new = [keys_of(after[slot])[-len(more) :] for slot, more in encode.items() if more]
    x = torch.cat([*new, torch.full((CANVAS * len(canvases), DIM), -1.0)])[:, None]
    for layer in range(3):
        out = cache.attend(layer, torch.zeros_like(x), x, x + layer, plan)
        assert out.isfinite().all()
    slots = [slot for slot, more in encode.items() if more]
    for slot, begin in [
        *((s, len(tokens[s])) for s in slots),
        *((s, len(after[s])) for s in canvases),
    ]:
        sees(cache, slot, begin, after[slot])
    cache.advance(plan)
    return plan


def sees(cache: KVCache, slot: int, begin: int, tokens: Sequence[int]) -> None:
    """Whether `slot` stores all that a token at `begin` or after it may look at, of `tokens`."""
    expected = keys_of(tokens)
    for layer, (kind, index) in enumerate(cache._layers):
        first = 0 if kind == "full_attention" else max(0, begin - WINDOW + 1)
        held = cache._slots[slot].held[kind]
        for pool, more in zip(cache._pools[kind].layer(index), (0, layer), strict=True):
            stored = pool[held.pages, :, 0].flatten(0, 1)[first - held.first * PAGE :]
            assert torch.equal(stored[: len(tokens) - first], expected[first:] + more)


def consistent(cache: KVCache) -> None:
    """Assert that each page is free, idle or held by its slots, and no slot exceeds its part."""
    for kind, pool in cache._pools.items():
        held = [slot.held[kind] for slot in cache._slots]
        holders = [0] * len(pool._holders)
        for one in held:
            assert len(one.pages) <= one.reserved
            for page in one.pages:
                holders[page] += 1
        assert holders == pool._holders
        assert {*pool._free} | {*pool._idle} == {p for p, n in enumerate(holders) if n == 0}
        assert not {*pool._free} & {*pool._idle}
        known = {page for each, page in cache._index._nodes if each == kind}
        assert {*pool._idle} <= known
        assert not known & {*pool._free}
        if pool.capacity is not None:
            assert sum(one.reserved for one in held) <= pool.capacity == len(holders)
