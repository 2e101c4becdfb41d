"""Layout of plain decoders that may have experts: the places of their tensors, and quantisation of
their experts, or of their dense MLPs. A family says what its modules are called in a file."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dlm.kernels.nvfp4 import tensor_scale
from dlm.models import adapting
from dlm.models.calibration import LargestActivations, denoise_and_encode
from dlm.models.decoder import PlainAttention, SiluMLP
from dlm.models.experts import Experts
from dlm.models.formats import MODELOPT, Format
from dlm.models.layout import Layout, Quantisation
from dlm.models.places import Place
from dlm.models.routed import ExpertRouter, RoutedConfig, RoutedDecoder

_MLP = "gate_proj", "up_proj", "down_proj"
_DOWN = _MLP[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Names of a decoder's modules in the files of a family."""

    stack: str  # before the names of all modules but `lm_head`
    modules: Mapping[str, str]  # last part of a module's name in a file, where it is another one
    joined: str | None  # name of one matrix that projects to queries, keys and values
    quantised: re.Pattern[str]  # names of the tensors that quantisation is for

    def path(self, name: str) -> str:
        """Return the name in a file of a module or a tensor of the network."""
        parts = [self.modules.get(part, part) for part in name.split(".")]
        return ".".join(parts) if parts[0] == "lm_head" else self.stack + ".".join(parts)


def layout_of(
    model_types: tuple[str, ...],
    config: Callable[[Mapping[str, Any]], RoutedConfig],
    names: Names,
    ignored: tuple[str, ...],
) -> Layout[RoutedConfig, RoutedDecoder]:
    """Return the layout of a family of plain decoders. `ignored` names the modules that stay floats
    when a checkpoint is quantised, as ModelOpt declares them: all but experts, or dense MLPs of a
    network without experts."""
    return Layout(
        model_types=model_types,
        config=config,
        network=RoutedDecoder,
        parameter_name=lambda tensor: tensor,  # all tensors of a file are needed
        adapt=partial(adapting.adapt, names.path),
        places=partial(_places, names),
        quantisation=Quantisation(
            blocks=_blocks,
            matrices=partial(_matrices, names),
            input_scales=partial(_input_scales, names),
            names=partial(_marks, names),
            ignored=ignored,
        ),
    )


def _places(names: Names, model: RoutedDecoder, form: Format | None) -> dict[str, Place]:
    """Return the places of all tensors of a file of `form`, by tensor name."""
    placed = adapting.places(names.path, "matrices", model, form)
    special: dict[str, Place] = {}
    for name, module in model.named_modules():
        path = names.path(name)
        if isinstance(module, PlainAttention) and names.joined is not None:
            special[f"{path}.{names.joined}.weight"] = _joined(name, module)
        elif isinstance(module, ExpertRouter) and module.expert_bias is not None:
            for each in ("weight", "expert_bias"):  # scores differ by less than bf16 can tell
                shape = tuple(module.get_parameter(each).shape)
                place = Place(parameter=f"{name}.{each}", shape=shape, held=torch.float32)
                special[f"{path}.{each}"] = place
    filled = {piece.parameter for place in special.values() for piece in place.pieces}
    return {n: place for n, place in placed.items() if place.parameter not in filled} | special


def _joined(name: str, attention: PlainAttention) -> Place:
    """Return the place of the rows of queries, then those of keys, then those of values."""
    pieces = tuple(
        Place(
            parameter=f"{name}.{each}.weight",
            shape=tuple(attention.get_parameter(f"{each}.weight").shape),
        )
        for each in attention.side_by_side
    )
    rows = sum(piece.shape[0] for piece in pieces)
    return Place(parameter=None, shape=(rows, pieces[0].shape[1]), joined=pieces)


def _blocks(config: RoutedConfig) -> dict[str, int]:
    """Return the lengths of the rows of matrices that are quantised."""
    if config.routing is None:
        return {"hidden size": config.hidden_size, "intermediate size": config.intermediate_size}
    return {"hidden size": config.hidden_size, "expert size": config.routing.size}


def _quantised(names: Names, config: RoutedConfig) -> set[str]:
    """Return the paths of all matrices that quantisation is for."""
    found = set()
    for index in range(len(config.layers)):
        routing, mlp = config.routing_of(index), f"layers.{index}.mlp"
        if config.routing is None:
            found |= {names.path(f"{mlp}.{each}") for each in _MLP}
        elif routing is not None:
            experts = names.path(f"{mlp}.experts")
            found |= {f"{experts}.{e}.{each}" for e in range(routing.experts) for each in _MLP}
    return found


def _marks(names: Names, config: RoutedConfig) -> list[str]:
    return [f"{path}.{MODELOPT.scale}" for path in _quantised(names, config)]


def _matrices(
    names: Names, name: str, tensor: Tensor
) -> Iterator[tuple[str, Tensor, Tensor]] | None:
    """Return the path of a matrix that is quantised, the matrix, and its tensor scale; None for
    another tensor."""
    if names.quantised.fullmatch(name) is None:
        return None
    return iter([(name.removesuffix(".weight"), tensor, tensor_scale(tensor))])


def _input_scales(names: Names, model: RoutedDecoder, canvases: int) -> dict[str, Tensor]:
    """Return the input scales by the names of matrices in a file: the largest activation of a
    layer's MLP, or of all its experts, before gate and up and before down, divided by the largest
    numbers of both formats. It is measured while the model denoises and encodes `canvases`
    canvases."""
    largest = LargestActivations()

    def watch(name: str, x: Tensor, gate: Tensor, up: Tensor) -> None:
        path = names.path(name)
        largest.note(path, x)
        largest.note(f"{path}.{_DOWN}", F.silu(F.linear(x, gate)) * F.linear(x, up))

    def watch_dense(name: str, mlp: SiluMLP, args: tuple[Tensor]) -> None:
        watch(name, args[0], mlp.gate_proj.weight, mlp.up_proj.weight)

    def watch_experts(name: str, experts: Experts, args: tuple[Tensor, Tensor, Tensor]) -> None:
        x, _, chosen = args
        for e in chosen.unique().tolist():
            gate_up = experts.get_parameter("gate_up_proj")[e]
            watch(name, x[(chosen == e).any(-1)], *gate_up.chunk(2))

    dense = model.config.routing is None
    for name, module in _named(model, SiluMLP if dense else Experts).items():
        module.register_forward_pre_hook(partial(watch_dense if dense else watch_experts, name))
    denoise_and_encode(model, canvases)
    measured, scales = largest.scales(), dict[str, Tensor]()
    for path in _quantised(names, model.config):
        module, _, matrix = path.rpartition(".")
        if not dense:
            module = module.rpartition(".")[0]  # all experts of a layer have the same
        key = f"{module}.{_DOWN}" if matrix == _DOWN else module
        if key in measured:
            scales[f"{path}.weight"] = measured[key]
    return scales


def _named(model: RoutedDecoder, kind: type[Any]) -> dict[str, Any]:
    """Return the modules of a kind, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, kind)}
