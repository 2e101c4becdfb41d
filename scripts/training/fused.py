"""Layers as training runs them on a CPU: the same maths in few passes over memory.

Numbers are bf16 where the processor multiplies them, and fp32 elsewhere: emulated, a product of
bf16 takes forty times as long as one of fp32.

Gains of norms before matrices are folded into the matrices, products with the same input are one,
and the operations between products are C++ (`fused.cpp`), compiled at first use. Every expert runs
on every token, with a weight of zero if it was not chosen. A step takes a third of the time of the
layers as torch compiles them.
"""

import ctypes
import os
import subprocess
import tempfile
import types
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from einops import rearrange
from jaxtyping import Float, Int, Int32
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from dlm.models import DiffusionGemma
from dlm.models.diffusion_gemma.layers import Layer, RMSNorm, SelfConditioning, rotary_angles
from training.objective import Memory

SOURCE = Path(__file__).with_name("fused.cpp")
# -ffast-math but for its start-up code, by which the whole process would flush denormals
LOOSE = "-ffinite-math-only -fassociative-math -freciprocal-math " + (
    "-fno-math-errno -fno-signed-zeros -fno-trapping-math"
)
COMPILER = f"g++ -O3 -march=native -mprefer-vector-width=512 {LOOSE} -fopenmp -std=c++20"
ALIGNED = 32  # widths of products are multiples of it
KEPT = {-1: 2**31 - 1, -3: 2**30}  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD: memory is used again


@cache
def number() -> torch.dtype:
    """Return the type of all numbers but those of the residual stream, which are fp32."""
    flags = Path("/proc/cpuinfo").read_text().split()
    return torch.bfloat16 if {"avx512_bf16", "amx_bf16"} & {*flags} else torch.float32


@cache
def library() -> ctypes.CDLL:
    """Return `fused.cpp` compiled for this machine. Raises `CalledProcessError`."""
    machine = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    compiler = COMPILER + " -DFP32" * (number() is torch.float32)
    of = zlib.crc32(f"{compiler}{SOURCE.read_text()}{machine}".encode())
    built = Path(tempfile.gettempdir()) / f"dlm-fused-{os.getuid()}-{of:08x}.so"
    if not built.exists():
        new = built.with_suffix(f".{os.getpid()}")
        command = [*compiler.split(), "-shared", "-fPIC", str(SOURCE), "-o", str(new)]
        subprocess.run(command, check=True)
        new.rename(built)
    return ctypes.CDLL(str(built))


def call(name: str, *args: Tensor | int | float) -> None:
    """Run a function of `fused.cpp`; it writes into tensors that it is given."""
    given: list[Any] = []
    for arg in args:
        if isinstance(arg, Tensor):
            if not arg.is_contiguous():
                raise ValueError(f"{name}: a tensor of shape {tuple(arg.shape)} has gaps")
            given.append(ctypes.c_void_p(arg.data_ptr()))
        else:
            given.append(ctypes.c_float(arg) if isinstance(arg, float) else ctypes.c_long(arg))
    getattr(library(), name)(*given)


def rows_of(x: Tensor) -> tuple[int, int]:
    return x.numel() // x.shape[-1], x.shape[-1]


class Unit(Function):
    """Normalisation without gain, `x / rms(x)`: fp32 `[..., D]` -> bf16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.eps = eps
        y = torch.empty(x.shape, dtype=number())
        call("unit", x, y, *rows_of(x), eps)
        return y

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        (dy,) = grad_outputs
        (x,) = ctx.saved_tensors
        dx = torch.empty_like(x)
        call("unit_backward", x, dy.contiguous(), dx, *rows_of(x), ctx.eps)
        return dx, None


class AddNorm(Function):
    """Residual sum `x + norm(a) * gain`: fp32 and bf16 `[..., D]` -> fp32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, gain: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(a, gain)
        ctx.eps = eps
        y = torch.empty_like(x)
        call("add_norm", x, a, gain, y, *rows_of(x), eps)
        return y

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        (dy,) = grad_outputs
        a, gain = ctx.saved_tensors
        dy, da, dgain = dy.contiguous(), torch.empty_like(a), torch.zeros_like(gain)
        call("add_norm_backward", a, gain, dy, da, dgain, *rows_of(a), ctx.eps)
        return dy, da, dgain, None


class Join(Function):
    """Residual sum after both MLPs, fp32 `[B, N, D]` and the MLPs' outputs in bf16 -> fp32.

    It is `(x + norm(norm(a) * gains[0] + norm(b) * gains[1]) * gains[2]) * scalars`.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, a: Tensor, b: Tensor, gains: Tensor, scalars: Tensor, eps: float
    ) -> Tensor:
        ctx.save_for_backward(a, b, gains, scalars)
        ctx.eps = eps
        y = torch.empty_like(x)
        call("join", x, a, b, gains, scalars, y, len(x), *x.shape[1:], eps)
        return y

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        (dy,) = grad_outputs
        a, b, gains, scalars = ctx.saved_tensors
        grads = torch.empty_like(dy), torch.empty_like(a), torch.empty_like(b)
        dgains = torch.zeros_like(gains)
        sizes = len(a), *a.shape[1:]
        given = a, b, gains, scalars, dy.contiguous()
        call("join_backward", *given, *grads, dgains, *sizes, ctx.eps)
        return *grads, dgains, None, None


class HeadSizes(NamedTuple):
    """Sizes of an attention layer."""

    B: int
    N: int
    queries: int  # heads
    keys: int
    D: int
    values: bool  # of their own, and not the keys


class Heads(Function):
    """Queries, keys and values of every token: bf16 `[B, N, width]` -> `[B, heads, N, D]` of each.

    They are normed, and all but the values are multiplied by `gains` `[2, D]` and rotated.
    """

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, gains: Tensor, cos: Tensor, sin: Tensor, sizes: HeadSizes, eps: float
    ) -> Any:
        ctx.save_for_backward(z, gains, cos, sin)
        ctx.rest = *sizes, eps
        B, N, Q, K, D, _ = sizes
        q, k, v = (torch.empty(B, heads, N, D, dtype=number()) for heads in (Q, K, K))
        call("heads", z, gains, cos, sin, q, k, v, *ctx.rest)
        return q, k, v

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        z, gains, cos, sin = ctx.saved_tensors
        dz, dgains = torch.empty_like(z), torch.zeros_like(gains)
        given = (grad.contiguous() for grad in grad_outputs)
        call("heads_backward", z, gains, cos, sin, *given, dz, dgains, *ctx.rest)
        return dz, dgains, None, None, None, None


class Attend(Function):
    """Attention of bf16 queries `[B, heads, N, D]` to keys and values `[B, kv_heads, M, D]`.

    Each query sees two ranges of keys, `[B, N, 4]`. Returns `[B, heads, N, D]`.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, spans: Tensor) -> Tensor:
        B, heads, N, D = shape = q.shape
        M = k.shape[2]
        q, k, v = q.view(-1, heads // k.shape[1] * N, D), k.view(-1, M, D), v.view(-1, M, D)
        p = q @ k.mT
        call("softmax", p, spans, B, heads, N, M)
        ctx.save_for_backward(q, k, v, p, spans)
        ctx.shape = shape
        return (p @ v).view(shape)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        (dy,) = grad_outputs
        q, k, v, p, spans = ctx.saved_tensors
        B, heads, N, D = ctx.shape
        dy = dy.contiguous().view(q.shape)
        ds, dv = dy @ v.mT, p.mT @ dy
        M = k.shape[1]
        call("softmax_backward", p, ds, spans, B, heads, N, M)
        dq, dk = ds @ k, ds.mT @ q
        return dq.view(ctx.shape), dk.view(B, -1, M, D), dv.view(B, -1, M, D), None


class MLPs(NamedTuple):
    """Sizes of a layer's MLPs."""

    dense: int
    experts: int
    expert: int
    chosen: int


class Gate(Function):
    """Gated activations: gates, ups and router's scores, bf16 `[..., width]`, to inputs of down.

    These are `[..., dense]` and `[..., experts * expert]`, the latter times the experts' weights.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, scales: Tensor, sizes: MLPs) -> Any:
        ctx.save_for_backward(z, scales)
        ctx.sizes = *rows_of(z), *sizes
        widths = sizes.dense, sizes.experts * sizes.expert
        dense, routed = (torch.empty(*z.shape[:-1], n, dtype=number()) for n in widths)
        call("gate", z, scales, dense, routed, *ctx.sizes)
        return dense, routed

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        z, scales = ctx.saved_tensors
        dz, dscales = torch.empty_like(z), torch.zeros_like(scales)
        given = (grad.contiguous() for grad in grad_outputs)
        call("gate_backward", z, scales, *given, dz, dscales, *ctx.sizes)
        return dz, dscales, None


class Matrices(NamedTuple):
    """Matrices of a layer, in bf16, as `F.linear` takes them."""

    heads: Tensor  # queries, keys and, where they have their own, values
    out: Tensor
    inner: Tensor  # gate and up, gate and up of each expert, the router
    dense: Tensor
    routed: Tensor


def gain_of(norm: RMSNorm) -> Tensor:
    return norm.get_parameter("weight")


def matrices(layer: Layer) -> Matrices:
    """Return the matrices, multiplied by the gains before them; parameters get gradients."""
    attention, mlp, router = layer.self_attn, layer.mlp, layer.router
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    heads = torch.cat([each.weight for each in projections if each is not None])
    both = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight))
    stack, down = (layer.experts.get_parameter(f"{name}_proj") for name in ("gate_up", "down"))
    inner = (
        both * gain_of(layer.pre_feedforward_layernorm),
        stack.flatten(0, 1) * gain_of(layer.pre_feedforward_layernorm_2),
        router.proj.weight * (router.scale * router.scale.numel() ** -0.5),
    )
    joined = torch.cat(inner)
    return Matrices(
        heads=(heads * gain_of(layer.input_layernorm)).to(number()),
        out=attention.o_proj.weight.to(number()),
        inner=F.pad(joined, (0, 0, 0, -len(joined) % ALIGNED)).to(number()),
        dense=mlp.down_proj.weight.to(number()),
        routed=down.permute(1, 0, 2).flatten(1).to(number()),
    )


def run_layer(
    layer: Layer,
    x: Float[Tensor, "B N hidden"],
    turns: tuple[Tensor, Tensor],
    spans: Int32[Tensor, "B N 4"],
    scalars: Float[Tensor, " N"],
    before: tuple[Tensor, Tensor] | None,
) -> tuple[Float[Tensor, "B N hidden"], tuple[Tensor, Tensor]]:
    """Run a layer as `Layer.forward`; return the states, and the tokens' keys and values.

    `turns` are cosines and sines `[B, N, D / 2]`. Tokens also see the keys and values in `before`,
    bf16 `[B, kv_heads, M, D]`.
    """
    m, attention, eps = matrices(layer), layer.self_attn, layer.input_layernorm.eps
    D, values = attention.head_dim, attention.v_proj is not None
    queries, keys = (len(each.weight) // D for each in (attention.q_proj, attention.k_proj))
    gains = torch.stack((gain_of(attention.q_norm), gain_of(attention.k_norm)))
    sizes = HeadSizes(x.shape[0], x.shape[1], queries, keys, D, values)
    q, k, v = Heads.apply(F.linear(Unit.apply(x, eps), m.heads), gains, *turns, sizes, eps)
    own = k, v
    if before is not None:
        k, v = (torch.cat(pair, dim=2) for pair in zip(before, own, strict=True))
    attended = rearrange(Attend.apply(q, k, v, spans), "b h n d -> b n (h d)")
    x = AddNorm.apply(x, F.linear(attended, m.out), gain_of(layer.post_attention_layernorm), eps)

    experts, router = layer.experts, layer.router
    mlps = MLPs(m.dense.shape[1], experts.experts, m.routed.shape[1] // experts.experts, router.k)
    inner = F.linear(Unit.apply(x, eps), m.inner)
    dense, routed = Gate.apply(inner, router.per_expert_scale, mlps)
    gains = torch.stack(
        (
            gain_of(layer.post_feedforward_layernorm_1),
            gain_of(layer.post_feedforward_layernorm_2),
            gain_of(layer.post_feedforward_layernorm),
        )
    )
    outs = F.linear(dense, m.dense), F.linear(routed, m.routed)
    return Join.apply(x, *outs, gains, scalars, eps), own


def run_layers(
    model: DiffusionGemma,
    x: Float[Tensor, "B N hidden"],
    positions: Int[Tensor, "B N"],
    spans: Mapping[int | None, Int32[Tensor, "B N 4"]],
    scalars: Sequence[Float[Tensor, "N 1"]],
    memory: Memory | None = None,
) -> tuple[Float[Tensor, "B N hidden"], Memory]:
    """Run all layers, as `objective.plainly` does."""
    turns, stored = {}, []
    before = memory or [None] * len(model.config.layers)
    for c in model.config.layers:
        angles = rotary_angles(model.config.rotary[c.kind], c.head_dim, positions)
        turns[c.kind] = tuple(each[..., 0, : c.head_dim // 2].contiguous() for each in angles)
    x = x.float()
    with torch.autocast("cpu", enabled=False):
        layers = cast("Iterable[Layer]", model.layers)
        for layer, c, scalar, of in zip(layers, model.config.layers, scalars, before, strict=True):
            seen = spans[model.config.window_of(c.kind)]
            x, keys = run_layer(layer, x, turns[c.kind], seen, scalar.flatten(), of)
            stored.append(keys)
    return model.norm(x), stored


def prepare(model: DiffusionGemma) -> None:
    """Compile the library, and run the self-conditioning of `model` by it too."""
    for option, value in KEPT.items():
        ctypes.CDLL(None).mallopt(option, value)
    library()
    model.self_conditioning.forward = types.MethodType(conditioned, model.self_conditioning)


def conditioned(self: SelfConditioning, canvas: Tensor, soft_embedding: Tensor) -> Tensor:
    """Run self-conditioning as `SelfConditioning.forward`."""
    both = torch.cat((self.gate_proj.weight, self.up_proj.weight)).to(number())
    mlps = MLPs(len(self.up_proj.weight), 0, 0, 0)
    with torch.autocast("cpu", enabled=False):
        inner = F.linear(self.pre_norm(soft_embedding).to(number()), both)
        dense, _ = Gate.apply(inner, torch.zeros(0), mlps)
        return self.post_norm(canvas + F.linear(dense, self.down_proj.weight.to(number())))
