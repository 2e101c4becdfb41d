"""A cache of whole blocks: each token sees its block and those before it."""

from random import Random

import pytest
import torch

from dlm.models.cache import KVCache
from dlm.models.pages import cache_bytes
from dlm.models.shape import LayerConfig, ModelShape

DIM, HEADS, CPU = 16, 2, torch.device("cpu")


def shape(block):
    layer = LayerConfig(kind="full_attention", head_dim=DIM, kv_heads=1)
    return ModelShape(
        vocab_size=9,
        hidden_size=32,
        heads=HEADS,
        layers=(layer,),
        canvas_length=block,
        max_positions=512,
        caches="whole",
    )


def make(block, slots=2, capacity=None):
    return KVCache(shape(block), slots, torch.float32, CPU, capacity)


def encode(cache, slot, tokens):
    """Encode tokens whose keys are zeros."""
    plan = cache.plan({slot: tokens}, [], 0)
    k = torch.zeros(len(tokens), 1, DIM)
    cache.attend(0, torch.zeros(len(tokens), HEADS, DIM), k, k, plan)
    cache.advance(plan)


@pytest.mark.parametrize("block", [4, 16, 32])
def test_attention_is_causal_over_blocks_and_sees_all_within_one(block):
    rng, total = Random(block), 5 * block
    q, k, v = (torch.randn(total, heads, DIM) for heads in (HEADS, 1, 1))
    blocks = torch.arange(total) // block
    scores = torch.einsum("qhd,khd->hqk", q, k.expand(-1, HEADS, -1))  # the cache scales nothing
    scores = scores.masked_fill(blocks[:, None] < blocks, -torch.inf)
    expected = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.expand(-1, HEADS, -1))
    cache, begin = make(block), 0
    for end in sorted({*rng.sample(range(1, 4), 2), 4}):
        tokens = [1] * ((end * block) - begin)
        plan = cache.plan({0: tokens}, [0], block)  # with the next block as a canvas
        rows = slice(begin, (end + 1) * block)
        out = cache.attend(0, q[rows], k[rows], v[rows], plan)
        torch.testing.assert_close(out, expected[rows])
        assert plan.positions.tolist() == [*range(total)[rows]]
        cache.advance(plan)
        begin = end * block


def test_a_part_of_a_block_is_refused():
    cache = make(8)
    with pytest.raises(ValueError, match="must fill blocks of 8, got 9 at position 0"):
        cache.plan({0: [1] * 9}, [], 0)
    assert cache.length(0) == 0
    encode(cache, 0, [1] * 8)


@pytest.mark.parametrize(("block", "shared"), [(4, 48), (32, 32), (24, 48)])
def test_beginnings_are_shared_up_to_a_page_of_whole_blocks(block, shared):
    """The keys of a token depend on all of its block: 63 equal tokens are less than two blocks."""
    cache = make(block)
    prompt = [1] * (96 // block * block)
    cache.attach(0, prompt)
    encode(cache, 0, prompt)
    assert cache.attach(1, [1] * 63 + [2] * 33) == shared


@pytest.mark.parametrize("block", [4, 32])
def test_the_memory_of_whole_blocks_is_computed_before_it_is_made(block):
    cache = make(block, capacity=100)
    taken = sum(
        tensor.nbytes
        for pool in cache._pools.values()
        for tensors in (pool._keys, pool._values)
        for tensor in tensors
    )
    assert taken == cache_bytes(shape(block), torch.float32, 100, 2, None)
