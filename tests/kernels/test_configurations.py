"""Rules choose configurations by shape, and launches have them, or the one that is passed."""

import pytest
import torch
from launches import Launches
from moe_cases import prepared, quantized
from torch import Tensor

from dlm.kernels import attention as attention_kernels
from dlm.kernels import moe as moe_kernels
from dlm.kernels import tiles as tiles_kernels
from dlm.kernels import vocab as vocab_kernels
from dlm.kernels.attention import attention
from dlm.kernels.configurations import (
    ATTENTION,
    DOWN,
    GATE_UP,
    HEADS,
    KERNELS,
    VOCABULARY,
    W4A16,
    Configuration,
)
from dlm.kernels.gpus import Target
from dlm.kernels.moe import Stack, moe
from dlm.kernels.nvfp4 import NVFP4, quantize
from dlm.kernels.paging import CANVAS, Pages, Paging, Segment
from dlm.kernels.tiles import BY_SM, matmul_w4a16, tiled_matrix
from dlm.kernels.vocab import vocab_pass

CPU = torch.device("cpu")
SHAPES = {  # a shape of each kernel
    "gate_up": {"bits": 4, "slots": 20, "experts": 3, "rows": 64, "columns": 128},
    "down": {"bits": 16, "slots": 20, "experts": 3, "rows": 128, "columns": 64},
    "w4a16": {"rows": 5, "outputs": 64, "inputs": 128},
    "w4a4": {"rows": 5, "outputs": 64, "inputs": 128},
    "attention": {"head_dim": 256, "bytes": 1},
    "vocabulary": {"tokens": 700, "bytes": 2},
    "gate_up_w4a4": {"slots": 20, "experts": 3, "rows": 64, "columns": 128},
    "down_w4a4": {"slots": 20, "experts": 3, "rows": 128, "columns": 64},
}


def product(x: Tensor, w: NVFP4, configuration: Configuration | None = None) -> Tensor:
    return matmul_w4a16(x, tiled_matrix(w), True, len(w.packed), configuration)


def test_a_product_has_the_configuration_of_the_rule_or_the_one_that_is_passed(monkeypatch, rng):
    launches = Launches(monkeypatch, tiles_kernels, "_w4a16_kernel")
    w, shape = quantize(torch.randn(70, 128, generator=rng)), {"outputs": 70, "inputs": 128}
    other = W4A16.candidates(9, {})[-1]
    for rows in (20, 33):
        x = torch.randn(rows, 128, generator=rng).bfloat16()
        by_rule = W4A16.by_rule(Target(9, 1), {"rows": rows, **shape})
        assert by_rule != other
        plain, passed = product(x, w), product(x, w, other)
        assert launches.have(by_rule)[-2:] == [True, False]
        assert launches.have(other)[-2:] == [False, True]
        assert torch.allclose(plain.float(), passed.float(), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("bits", [4, 16])
def test_experts_have_the_configurations_of_their_rules(bits, monkeypatch, rng):
    launches = {
        each.name: Launches(monkeypatch, moe_kernels, f"_{each.name}_kernel")
        for each in (GATE_UP, DOWN)
    }
    gate_up, down = (torch.randn(3, R, C, generator=rng) for R, C in ((128, 128), (128, 64)))
    stacks: list[Stack] = [gate_up.bfloat16(), down.bfloat16()]
    if bits == 4:
        stacks = [prepared(quantized(gate_up, 2)), prepared(quantized(down, 1))]
    for tokens in (10, 120):
        x = torch.randn(tokens, 128, generator=rng).bfloat16()
        weight = torch.rand(tokens, 2, generator=rng)
        expert = torch.rand(tokens, 3, generator=rng).argsort(-1)[:, :2].contiguous()
        moe(x, weight, expert, *stacks, by_kernel=True)
        for kernel, rows, columns in ((GATE_UP, 64, 128), (DOWN, 128, 64)):
            shape = {"bits": bits, "slots": 2 * tokens, "experts": 3}
            by_rule = kernel.by_rule(Target(9, 1), {**shape, "rows": rows, "columns": columns})
            assert launches[kernel.name].have(by_rule)[-1]
    for kernel in (GATE_UP, DOWN):
        shape = {"bits": bits, "slots": 20, "experts": 3}
        few, many = (kernel.by_rule(Target(9, 1), {**shape, "slots": n}) for n in (20, 240))
        assert few != many


def test_attention_has_the_configuration_of_the_rule_or_the_one_that_is_passed(monkeypatch, rng):
    launches = Launches(monkeypatch, attention_kernels, "_attention_kernel")
    shape = {"head_dim": 256, "bytes": 2}
    by_rule, other = ATTENTION.candidates(9, shape)[:2]
    assert by_rule["BLOCK_M"] != other["BLOCK_M"]
    q = torch.randn(96, 2, 256, generator=rng).bfloat16() / 16
    k, v = torch.randn(2, 96, 1, 256, generator=rng).bfloat16()
    one, none = torch.ones(1), torch.empty(0, dtype=torch.int64)
    segments = (Segment(0, 96, 0, CANVAS, 0),)
    paging = Paging(
        segments=segments,
        numbers=torch.tensor(segments, dtype=torch.int32).T.contiguous(),
        table=torch.zeros(1, 1, dtype=torch.int32),
        rows=none,
        places=none,
    )
    pages = Pages(
        torch.zeros(1, 16, 1, 256).bfloat16(), torch.zeros(1, 16, 1, 256).bfloat16(), one, one
    )
    found = [
        attention(q, k, v, pages, paging, by_kernel=True, configuration=configuration)
        for configuration in (None, other)
    ]
    assert torch.allclose(*(each.float() for each in found), rtol=0.02, atol=0.02)
    assert launches.have(other) == [False, True]


def test_the_vocabulary_pass_has_the_configuration_that_is_passed(monkeypatch, rng):
    launches = Launches(monkeypatch, vocab_kernels, "_chunk_kernel")
    logits = (torch.randn(3, 9000, generator=rng) * 4).bfloat16()
    args = logits, torch.ones(3), torch.full((3,), 0.4)
    shape, plain = {"tokens": 9000, "bytes": 2}, vocab_pass(*args, by_kernel=True)
    for chunk in VOCABULARY.candidates(9, shape):
        found = vocab_pass(*args, by_kernel=True, configuration=chunk)
        assert launches.have(chunk)[-1]
        assert torch.equal(found.argmax, plain.argmax)
        assert torch.equal(found.ids, plain.ids)
        assert torch.allclose(found.entropy, plain.entropy, atol=1e-4)
    assert not all(launches.have(chunk))


def test_every_kernel_has_configurations_of_its_own_options_and_its_rule_chooses_one():
    assert SHAPES.keys() == KERNELS.keys()
    for name, kernel in KERNELS.items():
        shape = SHAPES[name]
        for sm in BY_SM:
            candidates = kernel.candidates(sm, shape)
            assert kernel.by_rule(Target(sm, 132), shape) in candidates
            assert len({tuple(kernel.numbers(each)) for each in candidates}) == len(candidates)
            for each in candidates:
                assert each.keys() == {*kernel.options}
                assert kernel.configuration(kernel.numbers(each)) == each
    for head_dim, size in HEADS:
        assert ATTENTION.candidates(12, {"head_dim": head_dim, "bytes": size})
