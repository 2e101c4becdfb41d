"""Adaptation of a network of floats without data to a file: its layers, and places of all tensors.

A family has names of its own for the tensors of a file.
"""

from collections.abc import Callable, Collection
from typing import Any

import torch

from dlm.models import BackendError
from dlm.models.backends import Dispatch, shape_obstacles
from dlm.models.experts import Experts, Stored
from dlm.models.formats import MODELOPT, Format
from dlm.models.modules import CachedAttention
from dlm.models.nvfp4 import NVFP4Linear
from dlm.models.places import Place, linear_places, quantise_linear, quantised_paths
from dlm.models.text_stack import TextStack

Naming = Callable[[str], str]
"""Function from a network's own name of a tensor or module to that in a file."""


def adapt(
    name_of: Naming,
    model: TextStack[Any],
    names: Collection[str],
    form: Format | None,
    dispatch: Dispatch,
) -> None:
    """Adapt `model`, whose weights are floats without data, to a file with tensors `names`, and to
    run as `dispatch` requests. A layer is in NVFP4 if a tensor has its name and one of the format's
    marks."""
    quantised = quantised_paths(names, form)
    linear = quantise_linear(model, quantised, name_of)
    experts = {name: each for name, each in model.named_modules() if isinstance(each, Experts)}
    model.backends = dispatch.backends(*_shapes(model))
    for module in linear:
        module.backend, module.activation_bits = model.backends["nvfp4"], dispatch.activation_bits
    for name, module in experts.items():
        prefix = f"{name_of(name)}."
        projections = {path.rpartition(".")[2] for path in quantised if path.startswith(prefix)}
        module.adapt(model.backends["experts"], projections, dispatch.activation_bits)
    scaled = any(module.input_scale is not None for module in experts.values())
    if dispatch.activation_bits == 4 and not (linear or scaled):
        able = "layers, or both stacks of experts, in NVFP4" if experts else "layers in NVFP4"
        raise BackendError(f"activation_bits=4 is for {able}: there are none")


def obstacles(model: TextStack[Any]) -> dict[str, str]:
    """Return why kernels cannot run operations of an adapted model on any GPU, by operation."""
    return shape_obstacles(*_shapes(model))


def _shapes(model: TextStack[Any]) -> tuple[dict[str, list[int]], set[int]]:
    """Return the row lengths of the weights in each kind of product, and the head dims."""
    rows: dict[str, list[int]] = {}
    modules = [*model.modules()]
    if any(isinstance(module, Experts) for module in modules):
        rows["experts"] = [model.config.hidden_size]
    if linear := [module.in_features for module in modules if isinstance(module, NVFP4Linear)]:
        rows["nvfp4"] = linear
    return rows, {layer.head_dim for layer in model.config.layers}


def places(
    name_of: Naming, stored: Stored, model: TextStack[Any], form: Format | None
) -> dict[str, Place]:
    """Return the places of all tensors in a file of `form`, by tensor name. Experts of floats are
    `stored` as stacks or matrices."""
    placed: dict[str, Place] = {}
    for name, module in model.named_modules():
        path = name_of(name)
        if isinstance(module, Experts):
            placed |= module.places(path, name, form, stored)
        elif isinstance(module, NVFP4Linear) and form:
            placed |= linear_places(path, name, module, form)
        elif isinstance(module, CachedAttention):
            scales = form or MODELOPT  # scales of an fp8 cache may occur with float weights
            for ours, theirs in (("k_scale", scales.k_scale), ("v_scale", scales.v_scale)):
                placed[f"{path}.{theirs}"] = Place(
                    parameter=f"{name}.{ours}", shape=(), held=torch.float32, default=1.0
                )
    filled = {place.parameter for place in placed.values()}
    for name, tensor in model.state_dict().items():
        if name not in filled:
            placed[name_of(name)] = Place(parameter=name, shape=tuple(tensor.shape))
    return placed
