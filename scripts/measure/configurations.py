"""Launches of the kernels that have several configurations, at the shapes that a model gives them.

Weights and activations are random: times do not depend on them, except through the choice of
experts, which is even. Nothing is timed here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dlm.kernels.attention import attention
from dlm.kernels.configurations import (
    ATTENTION,
    DOWN,
    DOWN_W4A4,
    GATE_UP,
    GATE_UP_W4A4,
    HEADS,
    VOCABULARY,
    W4A4,
    W4A16,
    Configuration,
    TunableKernel,
)
from dlm.kernels.gpus import major, multiplies_four_bits
from dlm.kernels.moe import Stack, run_down, run_gate_up
from dlm.kernels.moe_w4a4 import run_down_w4a4, run_gate_up_w4a4
from dlm.kernels.nvfp4 import NVFP4, matmul_w4a4
from dlm.kernels.paging import CANVAS, Pages, Paging, Segment
from dlm.kernels.routing import Route, route
from dlm.kernels.tiles import Tiles, matmul_w4a16
from dlm.kernels.vocab import vocab_pass
from dlm.models.backends import padded
from dlm.models.decoder import DecoderConfig
from dlm.models.diffusion_gemma.config import ModelConfig
from dlm.models.pages import page_of
from dlm.models.plan import Weights
from dlm.models.routed import RoutedConfig
from dlm.models.shape import LayerConfig

_ONE = 0x38  # e4m3
_CANDIDATES, _THRESHOLD = 128, 2.0**-20  # of a vocabulary pass, as a step has them


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationCase:
    """Kernel at a shape. `run` launches it once with one of its configurations."""

    kernel: TunableKernel
    shape: Mapping[str, int]
    run: Callable[[Configuration], Any]

    def candidates(self, device: torch.device) -> Sequence[Configuration]:
        return self.kernel.candidates(major(device), self.shape)


def configuration_cases(
    config: ModelConfig | DecoderConfig,
    weights: Weights,
    slots: Sequence[int],
    context: int,
    device: torch.device,
) -> Iterator[ConfigurationCase]:
    """Yield the cases in which a device has a choice, one by one, since they hold memory.

    Experts are of type `weights`. Passes are those over the canvases of `slots` slots. Attention is
    over `context` tokens before each canvas, in caches of fp8 and of bf16. Configurations of
    attention and of the vocabulary pass do not depend on the number of slots, and are timed at the
    middle one.
    """
    rng = torch.Generator(device).manual_seed(0)
    rows = [n * config.canvas_length for n in sorted(slots)]
    middle = rows[len(rows) // 2]
    for cases in (
        _experts(config, weights, 16, rows, rng),
        _experts(config, weights, 4, rows, rng),
        _products(config, weights, rows, rng),
        _attention(config, middle // config.canvas_length, context, rng),
        _vocabulary(config, middle, rng),
    ):
        for case in cases:
            if len(case.candidates(device)) > 1:
                yield case


def _experts(
    config: ModelConfig | DecoderConfig,
    weights: Weights,
    activation_bits: int,
    rows: Sequence[int],
    rng: torch.Generator,
) -> Iterator[ConfigurationCase]:
    """Yield the experts' two products; none if there are none, if kernels do not run them, or a
    GPU does not multiply four bits by four."""
    H, (E, k, size) = config.hidden_size, _sizes_of_experts(config)
    inner, w4a4 = padded(size), activation_bits == 4
    if E == 0 or H % 64 or (w4a4 and (weights == "bf16" or not multiplies_four_bits(rng.device))):
        return
    first, second = (GATE_UP_W4A4, DOWN_W4A4) if w4a4 else (GATE_UP, DOWN)
    for kernel, R, C, parts in ((first, 2 * inner, H, 2), (second, H, inner, 1)):
        stack = _stack(rng, weights, w4a4, E, R, C, parts)
        for N in rows:
            slots, weight = _routed(N, E, k, rng)
            inputs, dtype = (N if kernel is first else N * k, C), torch.bfloat16
            if isinstance(stack, NVFP4):
                x = _codes(rng, torch.ones((), device=rng.device), *inputs)
                if kernel is first:
                    run = partial(run_gate_up_w4a4, x, k, slots, stack, dtype)
                else:
                    run = partial(run_down_w4a4, x, weight, slots, stack, dtype)
            else:
                x, ordered = _normal(rng, *inputs), isinstance(stack, Tiles)
                if kernel is first:
                    run = partial(run_gate_up, x, k, slots, stack, dtype, ordered_h=ordered)
                else:
                    run = partial(run_down, x, weight, slots, stack, dtype)
            shape = {"slots": N * k, "experts": E, "rows": R // parts, "columns": C}
            if not w4a4:
                shape = {"bits": 16 if weights == "bf16" else 4, **shape}
            yield ConfigurationCase(kernel=kernel, shape=shape, run=run)


def _sizes_of_experts(config: ModelConfig | DecoderConfig) -> tuple[int, int, int]:
    """Return the number of experts, that of a token, and their inner size; zeros if there are
    none."""
    if isinstance(config, ModelConfig):
        return config.experts, config.experts_per_token, config.expert_size
    routing = config.routing if isinstance(config, RoutedConfig) else None
    return (0, 0, 0) if routing is None else (routing.experts, routing.per_token, routing.size)


def _stack(
    rng: torch.Generator, weights: Weights, w4a4: bool, E: int, R: int, C: int, parts: int
) -> Stack:
    """Return a random stack of experts, whose results are small, as kernels take it."""
    if weights == "bf16":
        return _normal(rng, E, R, C) / C**0.5
    if w4a4:
        return _codes(rng, _small_scales(rng, E, C, parts), E, R, C)
    return _tiles(rng, E, R, C, parts)


def _routed(N: int, E: int, k: int, rng: torch.Generator) -> tuple[Route, Tensor]:
    """Return slots by expert, which are even, and their weights."""
    expert = torch.rand(N, E, generator=rng, device=rng.device).argsort(-1)[:, :k]
    return route(expert.contiguous(), E), torch.ones(N, k, device=rng.device)


def _products(
    config: ModelConfig | DecoderConfig, weights: Weights, rows: Sequence[int], rng: torch.Generator
) -> Iterator[ConfigurationCase]:
    """Yield products with NVFP4 matrices of the dense MLP, which some checkpoints have."""
    if weights == "bf16":
        return
    H, M = config.hidden_size, config.intermediate_size
    for K, R in ((H, M), (M, H)):
        if K % 64:
            continue
        tiles, one = _tiles(rng, 1, -(-R // 64) * 64, K, 1), torch.ones((), device=rng.device)
        matrix = _codes(rng, one, R, K)
        for N in rows:
            x, shape = _normal(rng, N, K), {"rows": N, "outputs": R, "inputs": K}
            run = partial(_run_w4a16, x, tiles, shape)
            yield ConfigurationCase(kernel=W4A16, shape=shape, run=run)
            if multiplies_four_bits(rng.device):
                run = partial(matmul_w4a4, x, matrix, one, True)
                yield ConfigurationCase(kernel=W4A4, shape=shape, run=run)


def _run_w4a16(x: Tensor, w: Tiles, shape: dict[str, int], configuration: Configuration) -> Tensor:
    options = {"rows": shape["outputs"], "configuration": configuration}
    return matmul_w4a16(x, w, by_kernel=True, **options)


def _attention(
    config: ModelConfig | DecoderConfig, count: int, context: int, rng: torch.Generator
) -> Iterator[ConfigurationCase]:
    """Yield attention of each head dim that has kernels, of the layers that see most."""
    layers = sorted({*config.layers}, key=lambda layer: layer.kind == "sliding_attention")
    by_head = {layer.head_dim: layer for layer in reversed(layers)}
    for layer in by_head.values():
        for stored in (torch.float8_e4m3fn, torch.bfloat16):
            shape = {"head_dim": layer.head_dim, "bytes": stored.itemsize}
            if (layer.head_dim, stored.itemsize) in HEADS:
                run = _attended(config, layer, count, context, stored, rng)
                yield ConfigurationCase(kernel=ATTENTION, shape=shape, run=run)


def _vocabulary(
    config: ModelConfig | DecoderConfig, N: int, rng: torch.Generator
) -> Iterator[ConfigurationCase]:
    """Yield the vocabulary pass, whose first kernel has a choice."""
    logits = _normal(rng, N, config.vocab_size) * 8
    heat, uniform = (torch.full((N,), each, device=rng.device) for each in (1.5, 0.5))
    shape = {"tokens": config.vocab_size, "bytes": logits.itemsize}
    softcap = config.softcap if isinstance(config, ModelConfig) else None

    def run(configuration: Configuration) -> Tensor:
        options = {"softcap": softcap, "k": _CANDIDATES, "threshold": _THRESHOLD}
        options |= {"by_kernel": True, "configuration": configuration}
        return vocab_pass(logits, heat, uniform, **options).entropy

    yield ConfigurationCase(kernel=VOCABULARY, shape=shape, run=run)


def _attended(
    config: ModelConfig | DecoderConfig,
    layer: LayerConfig,
    count: int,
    context: int,
    stored: torch.dtype,
    rng: torch.Generator,
) -> Callable[[Configuration], Tensor]:
    """Return attention of `count` canvases, whose pages are in order."""
    L, h, D, window = (
        config.canvas_length,
        layer.kv_heads,
        layer.head_dim,
        config.window_of(layer.kind),
    )
    page = page_of(config)
    oldest = 0 if window is None else max(0, context - window + 1) // page
    width = max(1, -(-context // page) - oldest)
    segments = tuple(Segment(i * L, L, context, CANVAS, oldest) for i in range(count))
    table = torch.arange(count * width, dtype=torch.int32, device=rng.device).view(count, width)
    none, one = (
        torch.empty(0, dtype=torch.int64, device=rng.device),
        torch.ones(1, device=rng.device),
    )
    numbers = torch.tensor(segments, dtype=torch.int32, device=rng.device).T.contiguous()
    paging = Paging(segments=segments, numbers=numbers, table=table, rows=none, places=none)
    keys, values = (_normal(rng, count * width, page, h, D).to(stored) for _ in range(2))
    q = _normal(rng, count * L, config.heads, D) * D**-0.5
    k, v = (_normal(rng, count * L, h, D) for _ in range(2))

    pages = Pages(keys, values, one, one)

    def run(configuration: Configuration) -> Tensor:
        return attention(q, k, v, pages, paging, window, True, configuration)

    return run


def _normal(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng, device=rng.device, dtype=torch.bfloat16)


def _random_bytes(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(256, shape, generator=rng, device=rng.device, dtype=torch.uint8)


def _codes(rng: torch.Generator, scale_2: Tensor, *shape: int) -> NVFP4:
    """Return random codes whose scales are 1."""
    *rows, C = shape
    scale = torch.full((*rows, C // 16), _ONE, dtype=torch.uint8, device=rng.device)
    return NVFP4(_random_bytes(rng, *rows, C // 2), scale.view(torch.float8_e4m3fn), scale_2)


def _tiles(rng: torch.Generator, E: int, R: int, C: int, parts: int) -> Tiles:
    """Return random codes whose scales are 1, and tensor scales that keep results small."""
    words = _random_bytes(rng, E, R // 64, C // 64, 64, 32).view(torch.int16)
    scale = torch.full((E, R // 64, C // 64, 64, 4), _ONE, dtype=torch.uint8, device=rng.device)
    return Tiles(words, scale, _small_scales(rng, E, C, parts))


def _small_scales(rng: torch.Generator, E: int, C: int, parts: int) -> Tensor:
    """Return tensor scales with which products over `C` columns are small."""
    return torch.full((E, parts), 0.3 * C**-0.5, device=rng.device)
