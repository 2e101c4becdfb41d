"""Map from the tensors of a file to the parameters of a model: names, shapes, types, and parts.

The text stack lies under `model.decoder.`; the encoder shares its weights and adds one
scalar per layer. A vision tower may be present; `vision.py` reads it.
"""

import re
from collections.abc import Collection

import torch

from dlm.models import BackendError
from dlm.models.backends import Dispatch
from dlm.models.diffusion_gemma.layers import Attention
from dlm.models.diffusion_gemma.model import DiffusionGemma
from dlm.models.experts import Experts
from dlm.models.formats import MODELOPT, Format
from dlm.models.nvfp4 import NVFP4Linear
from dlm.models.places import Place, linear_places, quantise_linear, quantised_paths

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

    A layer is in NVFP4 if a tensor has its name and one of the format's marks.
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
            prefix = f"{_DECODER}{name}."
            projections = {path.rpartition(".")[2] for path in quantised if path.startswith(prefix)}
            module.adapt(model.backends["experts"], projections, dispatch.activation_bits)
    scaled = any(isinstance(m, Experts) and m.input_scale is not None for m in model.modules())
    if dispatch.activation_bits == 4 and not (linear or scaled):
        raise BackendError(
            "activation_bits=4 is for layers, or both stacks of experts, in NVFP4: there are none"
        )


def places(model: DiffusionGemma, form: Format | None) -> dict[str, Place]:
    """Return the places of all tensors of the text stack in a file of `form`, by tensor name."""
    found: dict[str, Place] = {}
    for name, module in model.named_modules():
        path = _DECODER + name
        if isinstance(module, Experts):
            found |= module.places(path, name, form, "stacks")
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
