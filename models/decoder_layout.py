"""Layout of a plain dense decoder in files: places of its tensors, and quantisation of its layers.

A file stores each matrix by itself. A family has names of its own for them.
"""

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dlm.kernels.nvfp4 import tensor_scale
from dlm.models import BackendError
from dlm.models.backends import Dispatch
from dlm.models.decoder import DecoderConfig, PlainAttention, PlainDecoder
from dlm.models.formats import MODELOPT, Format
from dlm.models.layout import Quantisation
from dlm.models.nvfp4 import NVFP4Linear
from dlm.models.places import Place, linear_places, quantise_linear, quantised_paths

Naming = Callable[[str], str]
"""Function from a network's own name of a tensor or module to that in a file."""
_MATRICES = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)
_PASSES = 4  # denoising passes over a calibration canvas


def adapt(
    name_of: Naming,
    model: PlainDecoder[Any],
    names: Collection[str],
    form: Format | None,
    dispatch: Dispatch,
) -> None:
    """Adapt `model`, whose weights are floats without data, to a file with tensors `names`, and to
    run as `dispatch` requests. A layer is in NVFP4 if a tensor has its name and one of the format's
    marks. Between products, layers are plain torch."""
    linear = quantise_linear(model, quantised_paths(names, form), name_of)
    rows = {"nvfp4": [module.in_features for module in linear]} if linear else {}
    head_dims = {layer.head_dim for layer in model.config.layers}
    model.backends = {**dispatch.backends(rows, head_dims), "layers": "torch"}
    for module in linear:
        module.backend, module.activation_bits = model.backends["nvfp4"], dispatch.activation_bits
    if dispatch.activation_bits == 4 and not linear:
        raise BackendError("activation_bits=4 is for layers in NVFP4: there are none")


def places(name_of: Naming, model: PlainDecoder[Any], form: Format | None) -> dict[str, Place]:
    """Return the places of all tensors in a file of `form`, by tensor name."""
    placed: dict[str, Place] = {}
    for name, module in model.named_modules():
        path = name_of(name)
        if isinstance(module, NVFP4Linear) and form:
            placed |= linear_places(path, name, module, form)
        elif isinstance(module, PlainAttention):
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


def quantisation(name_of: Naming, ignored: tuple[str, ...]) -> Quantisation[Any, Any]:
    """Return the quantisation of all matrices of the layers. `ignored` names the modules of a file
    that stay as they are."""
    return Quantisation(
        blocks=_blocks,
        matrices=partial(_matrices, name_of),
        input_scales=partial(_input_scales, name_of),
        names=partial(_names, name_of),
        ignored=ignored,
    )


def _blocks(config: DecoderConfig) -> dict[str, int]:
    (head_dim,) = {layer.head_dim for layer in config.layers}
    return {
        "hidden size": config.hidden_size,
        "size of all heads": config.heads * head_dim,
        "intermediate size": config.intermediate_size,
    }


def _matrices(
    name_of: Naming, name: str, tensor: Tensor
) -> Iterator[tuple[str, Tensor, Tensor]] | None:
    path, _, last = name.rpartition(".")
    if last != "weight" or not path.endswith(_MATRICES) or not path.startswith(name_of("layers.")):
        return None
    return iter([(path, tensor, tensor_scale(tensor))])


def _names(name_of: Naming, config: DecoderConfig) -> list[str]:
    layers = range(len(config.layers))
    return [
        name_of(f"layers.{i}.{matrix}.{MODELOPT.scale}") for i in layers for matrix in _MATRICES
    ]


def _input_scales(name_of: Naming, model: PlainDecoder[Any], canvases: int) -> dict[str, Tensor]:
    """Return the input scales of the layers' matrices: the largest activation before each while the
    model denoises and commits `canvases` canvases, divided by the largest numbers of both
    formats."""
    largest: dict[str, Tensor] = {}

    def watch(name: str, module: nn.Module, args: tuple[Tensor]) -> None:
        now = args[0].abs().amax().float().cpu()
        largest[name] = torch.maximum(largest.get(name, now), now)

    hooks = [
        module.register_forward_pre_hook(partial(watch, name_of(f"{name}.weight")))
        for name, module in model.named_modules()
        if name.startswith("layers.") and isinstance(module, nn.Linear)
    ]
    denoise_and_encode(model, canvases)
    for hook in hooks:
        hook.remove()
    return {name: amax / (6 * 448) for name, amax in largest.items()}


def denoise_and_encode(model: PlainDecoder[Any], canvases: int) -> None:
    """Denoise and encode `canvases` canvases one after another, in a few passes each."""
    rng, cache = torch.Generator().manual_seed(0), model.new_cache(1)
    for _ in range(canvases):
        canvas = torch.randint(model.vocab_size, (1, model.canvas_length), generator=rng)
        canvas = canvas.to(model.device)
        for _ in range(_PASSES):
            canvas = model.denoise(canvas, None, cache, [0]).argmax(-1)
        model.encode(canvas.tolist(), cache, [0])
