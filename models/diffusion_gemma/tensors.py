"""Map from the tensors of a file to the parameters of a model: names, shapes, types, and parts.

Files store experts one by one where the model holds a stack, and gate and up apart where it holds
one matrix. The text stack lies under `model.decoder.`; the encoder shares its weights and adds one
scalar per layer. A vision tower may be present; `vision.py` reads it.
"""

import re
from collections.abc import Collection
from functools import partial
from itertools import product

import torch
from torch import Tensor, nn

from dlm.models import BackendError
from dlm.models.backends import Dispatch, padded
from dlm.models.diffusion_gemma.config import ModelConfig
from dlm.models.diffusion_gemma.layers import Attention, Experts
from dlm.models.diffusion_gemma.model import DiffusionGemma
from dlm.models.formats import MODELOPT, Format
from dlm.models.nvfp4 import NVFP4Linear, NVFP4Weight
from dlm.models.places import (
    Place,
    linear_places,
    number_place,
    nvfp4_places,
    quantise_linear,
    quantised_paths,
)

_DECODER = "model.decoder."
_ENCODER_SCALAR = re.compile(r"model\.encoder\.language_model\.layers\.(\d+)\.layer_scalar")
VISION = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")


def parameter_name(tensor: str) -> str | None:
    """Return the model's name of a tensor on disk; None if the text stack does not need it."""
    if tensor.startswith(VISION):
        return None
    if scalar := _ENCODER_SCALAR.fullmatch(tensor):
        return f"layers.{scalar[1]}.encoder_scalar"
    return tensor.removeprefix(_DECODER)


def tensor_name(parameter: str) -> str:
    """Invert `parameter_name`."""
    if scalar := re.fullmatch(r"layers\.(\d+)\.encoder_scalar", parameter):
        return f"model.encoder.language_model.layers.{scalar[1]}.layer_scalar"
    return _DECODER + parameter


def adapt(
    model: DiffusionGemma, names: Collection[str], form: Format | None, dispatch: Dispatch
) -> None:
    """Adapt `model`, whose weights are floats without data, to a file with tensors `names`, and to
    run as `dispatch` requests.

    A layer is in NVFP4 if a tensor has its name and one of the format's marks. The inner size of
    experts that kernels run is padded to whole groups: zeros there change no result.
    """
    quantised = quantised_paths(names, form)
    linear = quantise_linear(model, quantised, _DECODER.__add__)
    rows = {"experts": [model.config.hidden_size]}
    if linear:
        rows["nvfp4"] = [module.in_features for module in linear]
    head_dims = {layer.head_dim for layer in model.config.layers}
    model.backends = dispatch.backends(rows, head_dims)
    for module in linear:
        module.backend, module.activation_bits = model.backends["nvfp4"], dispatch.activation_bits
    for name, module in model.named_modules():
        if isinstance(module, Experts):
            module.backend = model.backends["experts"]
            prefix = f"{_DECODER}{name}."
            projections = {path.rpartition(".")[2] for path in quantised if path.startswith(prefix)}
            _restack(module, model.config, projections, dispatch.activation_bits)
    scaled = any(isinstance(m, Experts) and m.input_scale is not None for m in model.modules())
    if dispatch.activation_bits == 4 and not (linear or scaled):
        raise BackendError(
            "activation_bits=4 is for layers, or both stacks of experts, in NVFP4: there are none"
        )


def _restack(
    experts: Experts, config: ModelConfig, quantised: Collection[str], activation_bits: int
) -> None:
    """Give experts the right stacks; `quantised` names the projections in NVFP4."""
    E, H, inner = config.experts, config.hidden_size, config.expert_size
    if experts.backend == "triton":
        inner = padded(inner)
    gate_up = "gate_proj" in quantised or "up_proj" in quantised
    del experts.gate_up_proj, experts.down_proj  # torch allows no module under a parameter's name
    experts.gate_up_proj = _stack(gate_up, E, 2 * inner, H, parts=2)
    experts.down_proj = _stack("down_proj" in quantised, E, H, inner, parts=1)
    if activation_bits == 4 and gate_up and "down_proj" in quantised:
        experts.input_scale = torch.empty(E, 3)


def _stack(four_bit: bool, *shape: int, parts: int) -> nn.Parameter | NVFP4Weight:
    if four_bit:
        return NVFP4Weight(*shape, parts=parts)
    return nn.Parameter(torch.empty(shape))


def places(model: DiffusionGemma, form: Format | None) -> dict[str, Place]:
    """Return the places of all tensors of the text stack in a file of `form`, by tensor name."""
    found: dict[str, Place] = {}
    for name, module in model.named_modules():
        path = _DECODER + name
        if isinstance(module, Experts):
            found |= _experts(path, name, module, model.config, form)
        elif isinstance(module, NVFP4Linear) and form:
            found |= linear_places(path, name, module, form)
        elif isinstance(module, Attention):
            scales = form or MODELOPT  # scales of an fp8 cache may occur with float weights
            for ours, theirs in (("k_scale", scales.k_scale), ("v_scale", scales.v_scale)):
                found[f"{path}.{theirs}"] = Place(
                    parameter=f"{name}.{ours}", shape=(), held=torch.float32, default=1.0
                )
    claimed = {place.parameter for place in found.values()}
    for name, tensor in model.state_dict().items():
        if name not in claimed:
            found[tensor_name(name)] = Place(parameter=name, shape=tuple(tensor.shape))
    return found


def _experts(
    path: str, name: str, module: Experts, config: ModelConfig, form: Format | None
) -> dict[str, Place]:
    """Return the places of both stacks: one tensor each, or several for each expert and
    projection."""
    found: dict[str, Place] = {}
    H, inner = config.hidden_size, config.expert_size
    unread = Place(parameter=None, shape=(), stored=torch.float32, default=torch.nan)
    for stack, projections, (R, C), first in (
        ("gate_up_proj", ("gate_proj", "up_proj"), (inner, H), 0),
        ("down_proj", ("down_proj",), (H, inner), 2),
    ):
        parameter, parts = f"{name}.{stack}", len(projections)
        if form is None or not isinstance(getattr(module, stack), NVFP4Weight):
            part = partial(_unpadded_stack, parts=parts, R=R, C=C)
            shape = (config.experts, parts * R, C)
            found[f"{path}.{stack}"] = Place(parameter=parameter, shape=shape, part=part)
            continue
        for e, (index, projection) in product(range(config.experts), enumerate(projections)):
            one = f"{path}.{e}.{projection}"
            block = partial(_block, e=e, index=index, parts=parts, R=R)
            number = partial(_number, e=e, index=index)
            found |= nvfp4_places(one, parameter, (R, C), form, block, number)
            scale = unread
            if module.input_scale is not None:
                number = partial(_number, e=e, index=first + index)
                scale = number_place(f"{name}.input_scale", form, number)
            found[f"{one}.{form.input_scale}"] = scale
    return found


def _unpadded_stack(stack: Tensor, parts: int, R: int, C: int) -> Tensor:
    """Return a stack without the padding for kernels: `[E, parts, R, C]`."""
    return stack.unflatten(1, (parts, -1))[:, :, :R, :C]


def _block(stack: Tensor, e: int, index: int, parts: int, R: int, C: int) -> Tensor:
    """Return one projection of one expert without the padding for kernels: `[R, C]`."""
    return stack[e].unflatten(0, (parts, -1))[index, :R, :C]


def _number(scales: Tensor, e: int, index: int) -> Tensor:
    return scales[e, index]
