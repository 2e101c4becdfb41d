"""Stacks of routed experts: the module, and the places of a file's tensors in it.

Gate and up of an expert are one matrix, gate's rows first. Files store stacks as they are, or
every matrix by itself; in NVFP4 it is always by itself. This module does not know how experts are
chosen.
"""

from collections.abc import Collection
from functools import partial
from itertools import product
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dlm.kernels.gpus import ROWS
from dlm.kernels.moe import Stack, choices, matrix, moe
from dlm.kernels.norms import Activation, activated
from dlm.kernels.nvfp4 import rounded
from dlm.kernels.routing import sort_slots
from dlm.kernels.tiles import Tiles
from dlm.models.backends import Backend, padded
from dlm.models.formats import Format
from dlm.models.nvfp4 import NVFP4Weight
from dlm.models.places import Place, number_place, nvfp4_places

PROJECTIONS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""Matrices of an expert that a stack holds, by the name of the stack."""
Stored = Literal["stacks", "matrices"]
"""Forms of experts of floats in a file: both stacks of a layer, or each matrix of each expert."""


class Experts(nn.Module):
    """Gated MLPs, each run on the tokens routed to it. If both stacks are in NVFP4, activations can
    be quantised too (W4A4). Without a kernel, NVFP4 experts are decoded one at a time and
    multiplied in fp32."""

    def __init__(self, experts: int, hidden: int, inner: int, activation: Activation = "gelu_tanh"):
        super().__init__()
        self.experts, self.hidden, self.inner = experts, hidden, inner
        self.activation: Activation = activation
        self.gate_up_proj: nn.Parameter | NVFP4Weight = nn.Parameter(
            torch.empty(experts, 2 * inner, hidden)
        )
        self.down_proj: nn.Parameter | NVFP4Weight = nn.Parameter(
            torch.empty(experts, hidden, inner)
        )
        # Of activations in W4A4: `[E, 3]` of gates, ups and downs as in a file; `[2]` once joined.
        self.input_scale: Tensor | None
        self.register_buffer("input_scale", None)
        self.backend: Backend = "torch"

    def forward(self, x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
        """Return `[N, hidden]` for tokens `[N, hidden]` and weights and expert ids `[N, k]`."""
        gate_up, down = self._stacks()
        if self.backend == "triton":
            scales = self.input_scale
            return moe(x, weight, expert, gate_up, down, scales, True, self.activation)
        out = torch.zeros_like(x)
        by_expert = expert.flatten().argsort(stable=True)
        counts = expert.flatten().bincount(minlength=self.experts).tolist()
        for e, chosen in enumerate(by_expert.split(counts)):
            if len(chosen) == 0:
                continue
            token = chosen // expert.shape[-1]
            rows = F.pad(x[token], (0, 0, 0, max(0, ROWS - len(token))))
            w = matrix(gate_up, e)
            gate, up = F.linear(self._quantised(rows, x, 0).type_as(w), w).chunk(2, dim=-1)
            inner = activated(gate, self.activation) * up
            inner = self._quantised(inner, x, 1)
            w = matrix(down, e)
            y = F.linear(inner.type_as(w), w)
            y = y[: len(token)] * weight.flatten()[chosen, None]
            out = out.index_add(0, token, y.type_as(out))
        return out

    def by_kernels(self, x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
        """Return what `forward` returns, or by kernels each choice's result, `[N, k, hidden]`.
        `x` must be `ordered` if `order_of_tiles`."""
        if self.backend != "triton":
            return self(x, weight, expert)
        route, stacks = sort_slots(expert, self.experts, by_kernel=True), self._stacks()
        return choices(x, weight, route, *stacks, self.input_scale, self.activation)

    @property
    def order_of_tiles(self) -> bool:
        """Whether `by_kernels` takes columns in the order of tiles."""
        return self.backend == "triton" and isinstance(self._stacks()[0], Tiles)

    def adapt(self, backend: Backend, quantised: Collection[str], activation_bits: int) -> None:
        """Replace the stacks, which have no data yet, by those for a file in which the projections
        `quantised` are in NVFP4. The inner size of experts that kernels run is padded to whole
        groups: zeros there change no result."""
        E, H = self.experts, self.hidden
        self.backend = backend
        inner = padded(self.inner) if backend == "triton" else self.inner
        gate_up = "gate_proj" in quantised or "up_proj" in quantised
        del self.gate_up_proj, self.down_proj  # torch allows no module under a parameter's name
        self.gate_up_proj = _stack(gate_up, E, 2 * inner, H, parts=2)
        self.down_proj = _stack("down_proj" in quantised, E, H, inner, parts=1)
        if activation_bits == 4 and gate_up and "down_proj" in quantised:
            self.input_scale = torch.empty(E, 3)

    def prepare(self) -> None:
        """Make loaded weights ready: tiles for kernels of W4A16. For W4A4, one scale for all
        experts, the largest, since tokens are quantised before they are routed."""
        if self.input_scale is not None:
            if self.input_scale.ndim == 2:
                most = self.input_scale.amax(0)
                self.input_scale = torch.stack((most[:2].amax(), most[2]))
        elif self.backend == "triton":
            for stack in (self.gate_up_proj, self.down_proj):
                if isinstance(stack, NVFP4Weight):
                    stack.tile()

    def places(self, path: str, name: str, form: Format | None, stored: Stored) -> dict[str, Place]:
        """Return the places of both stacks in a file in which they lie at `path`; `name` is that of
        this module in its network."""
        placed: dict[str, Place] = {}
        sizes = {"gate_up_proj": (self.inner, self.hidden), "down_proj": (self.hidden, self.inner)}
        for stack, projections in PROJECTIONS.items():
            if form is not None and isinstance(getattr(self, stack), NVFP4Weight):
                placed |= self._nvfp4_places(path, name, stack, sizes[stack], form)
                continue
            (R, C), parts, parameter = sizes[stack], len(projections), f"{name}.{stack}"
            if stored == "stacks":
                part = partial(_unpadded_stack, parts=parts, R=R, C=C)
                shape = (self.experts, parts * R, C)
                placed[f"{path}.{stack}"] = Place(parameter=parameter, shape=shape, part=part)
                continue
            for e, (index, projection) in product(range(self.experts), enumerate(projections)):
                part = partial(_block, e=e, index=index, parts=parts, R=R, C=C)
                place = Place(parameter=parameter, shape=(R, C), part=part)
                placed[f"{path}.{e}.{projection}.weight"] = place
        return placed

    def _nvfp4_places(
        self, path: str, name: str, stack: str, shape: tuple[int, int], form: Format
    ) -> dict[str, Place]:
        """Return the places of a stack in NVFP4."""
        placed: dict[str, Place] = {}
        projections, first = PROJECTIONS[stack], 0 if stack == "gate_up_proj" else 2
        unread = Place(parameter=None, shape=(), stored=torch.float32, default=torch.nan)
        for e, (index, projection) in product(range(self.experts), enumerate(projections)):
            one = f"{path}.{e}.{projection}"
            block = partial(_block, e=e, index=index, parts=len(projections), R=shape[0])
            number = partial(_number, e=e, index=index)
            placed |= nvfp4_places(one, f"{name}.{stack}", shape, form, block, number)
            scale = unread
            if self.input_scale is not None:
                number = partial(_number, e=e, index=first + index)
                scale = number_place(f"{name}.input_scale", form, number)
            placed[f"{one}.{form.input_scale}"] = scale
        return placed

    def _quantised(self, rows: Tensor, x: Tensor, product: int) -> Tensor:
        """Return the inputs of a product as it takes them; `x` has their type in W4A4."""
        if self.input_scale is None:
            return rows
        return rounded(rows.type_as(x), self.input_scale[product])

    def _stacks(self) -> tuple[Stack, Stack]:
        gate_up, down = (
            stack.value if isinstance(stack, NVFP4Weight) else stack
            for stack in (self.gate_up_proj, self.down_proj)
        )
        return gate_up, down


def _stack(four_bit: bool, *shape: int, parts: int) -> nn.Parameter | NVFP4Weight:
    if four_bit:
        return NVFP4Weight(*shape, parts=parts)
    return nn.Parameter(torch.empty(shape))


def _unpadded_stack(stack: Tensor, parts: int, R: int, C: int) -> Tensor:
    """Return a stack without the padding for kernels: `[E, parts, R, C]`."""
    return stack.unflatten(1, (parts, -1))[:, :, :R, :C]


def _block(stack: Tensor, e: int, index: int, parts: int, R: int, C: int) -> Tensor:
    """Return one projection of one expert without the padding for kernels: `[R, C]`."""
    return stack[e].unflatten(0, (parts, -1))[index, :R, :C]


def _number(scales: Tensor, e: int, index: int) -> Tensor:
    return scales[e, index]
