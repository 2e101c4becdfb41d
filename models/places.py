"""Places of a file's tensors in a network, and the parameters that they fill.

A family maps its own names to places. Files may store in parts what a network holds as one: a place
has the view that a tensor fills.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from dlm.models.backends import Dispatch
from dlm.models.formats import Format
from dlm.models.nvfp4 import NVFP4Linear
from dlm.models.text_stack import TextStack

N = TypeVar("N", bound=TextStack)


@runtime_checkable
class SideBySide(Protocol):
    """Module with linear layers that read the same input."""

    @property
    def side_by_side(self) -> Sequence[str]:
        """Names of these layers."""
        ...


@runtime_checkable
class Preparing(Protocol):
    """Module whose loaded weights are made ready before they are used."""

    def prepare(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Place of a file's tensor in a model."""

    parameter: str | None  # or buffer, by name; None: the tensor is not read
    shape: tuple[int, ...]  # of the tensor; () is a number, which some files store as [1]
    stored: torch.dtype | None = None  # type of the tensor; None: any float
    held: torch.dtype | None = None  # type in the model; None: the type that it is loaded in
    part: Callable[[Tensor], Tensor] = lambda whole: whole  # returns the view that is filled
    divisor: bool = False  # whether the file has the inverse
    default: float | None = None  # value if a file lacks it; None: no file may lack it
    joined: tuple["Place", ...] = ()  # places of its rows, in their order, that it fills instead

    @property
    def pieces(self) -> tuple["Place", ...]:
        """Places that the tensor fills."""
        return self.joined or (self,)


def quantised_paths(names: Collection[str], form: Format | None) -> set[str]:
    """Return the paths of the layers in NVFP4 in a file with tensors `names`: those of which a
    tensor has one of the format's marks."""
    marks = form.marks if form else ()
    return {name.rpartition(".")[0] for name in names if name.rpartition(".")[2] in marks}


def quantise_linear(
    model: nn.Module, paths: Collection[str], path_of: Callable[[str], str]
) -> list[NVFP4Linear]:
    """Put NVFP4 layers into a model without data for the linear layers that lie at `paths` in a
    file, and return them; `path_of` maps the name of a layer to its path."""
    for name, module in [*model.named_modules()]:
        if isinstance(module, nn.Linear) and path_of(name) in paths:
            model.set_submodule(name, NVFP4Linear(module.in_features, module.out_features))
    return [module for module in model.modules() if isinstance(module, NVFP4Linear)]


def blank(model: TextStack, wanted: Mapping[str, Place], dispatch: Dispatch) -> dict[str, Tensor]:
    """Return zeros for all that `wanted` fills in a model without data, by name in the model. If
    kernels run layers, the matrices of linear layers with the same input are adjacent: one product
    computes them all."""
    shapes = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    held = {
        piece.parameter: piece.held or dispatch.dtype
        for place in wanted.values()
        for piece in place.pieces
        if piece.parameter is not None
    }
    joined = side_by_side(model) if model.backends["layers"] == "triton" else []
    joined = [names for names in joined if held.keys() >= {*names}]
    apart = held.keys() - {name for names in joined for name in names}
    found = {
        name: torch.zeros(shapes[name].shape, dtype=held[name], device=dispatch.device)
        for name in apart
    }
    for names in joined:
        rows, columns = [len(shapes[name]) for name in names], shapes[names[0]].shape[1]
        whole = torch.zeros(sum(rows), columns, dtype=held[names[0]], device=dispatch.device)
        found |= zip(names, whole.split(rows), strict=True)
    return {name: found[name] for name in held}


def side_by_side(model: TextStack) -> list[list[str]]:
    """Return the names of the matrices in each group of linear layers that read the same input."""
    return [
        [f"{name}.{each}.weight" for each in module.side_by_side]
        for name, module in model.named_modules()
        if isinstance(module, SideBySide)
    ]


def give(model: N, tensors: dict[str, Tensor]) -> N:
    """Put `tensors` into a model without data, and make it ready to run. `tensors` is empty
    afterwards."""
    kept = model.state_dict().keys()
    model.load_state_dict({name: tensors[name] for name in kept}, assign=True)
    for name in tensors.keys() - kept:  # buffers that are not saved
        module, _, buffer = name.rpartition(".")
        setattr(model.get_submodule(module), buffer, tensors[name])
    tensors.clear()  # tiling a stack needs the memory of the previous one
    for module in model.modules():
        if isinstance(module, Preparing):
            module.prepare()
    return model.requires_grad_(False).eval()


def linear_places(path: str, name: str, module: NVFP4Linear, form: Format) -> dict[str, Place]:
    """Return the places of a linear layer that lies at `path` in a file; `name` is its own."""
    shape = module.out_features, module.in_features
    scale = number_place(f"{name}.input_scale", form, _whole)
    if module.activation_bits == 16:
        scale = replace(scale, default=torch.nan)
    matrix = nvfp4_places(path, f"{name}.weight", shape, form, _whole, _whole)
    return {**matrix, f"{path}.{form.input_scale}": scale}


def number_place(parameter: str, form: Format, part: Callable[[Tensor], Tensor]) -> Place:
    """Return the place of a scale of a whole tensor, or of activations."""
    return replace(_as_stored(parameter, (), torch.float32, part), divisor=form.divisors)


def _as_stored(
    parameter: str, shape: tuple[int, ...], dtype: torch.dtype, part: Callable[[Tensor], Tensor]
) -> Place:
    """Return the place of a tensor that a model holds in the type of the file."""
    return Place(parameter=parameter, shape=shape, stored=dtype, held=dtype, part=part)


def nvfp4_places(
    path: str,
    parameter: str,
    shape: tuple[int, int],
    form: Format,
    block: Callable[..., Tensor],
    number: Callable[[Tensor], Tensor],
) -> dict[str, Place]:
    """Return the places of the three tensors of a matrix of `shape`. `block` and `number` return
    its parts of the model's blocks and of its tensor scales."""
    R, C = shape
    codes = (R, C // 2), torch.uint8, partial(block, C=C // 2)
    scales = (R, C // 16), torch.float8_e4m3fn, partial(block, C=C // 16)
    return {
        f"{path}.{form.packed}": _as_stored(f"{parameter}.packed", *codes),
        f"{path}.{form.scale}": _as_stored(f"{parameter}.scale", *scales),
        f"{path}.{form.scale_2}": number_place(f"{parameter}.scale_2", form, number),
    }


def _whole(parameter: Tensor, C: int | None = None) -> Tensor:
    return parameter
