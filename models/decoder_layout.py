"""Layout of a plain dense decoder in files, and quantisation of its layers.

A file stores each matrix by itself. A family has names of its own for them.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from dlm.kernels.nvfp4 import tensor_scale
from dlm.models.adapting import Naming
from dlm.models.calibration import LargestActivations, denoise_and_encode
from dlm.models.decoder import DecoderConfig, PlainDecoder
from dlm.models.formats import MODELOPT
from dlm.models.layout import Quantisation

_MATRICES = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)


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
    largest = LargestActivations()

    def watch(name: str, module: nn.Module, args: tuple[Tensor]) -> None:
        largest.note(name, args[0])

    hooks = [
        module.register_forward_pre_hook(partial(watch, name_of(f"{name}.weight")))
        for name, module in model.named_modules()
        if name.startswith("layers.") and isinstance(module, nn.Linear)
    ]
    denoise_and_encode(model, canvases)
    for hook in hooks:
        hook.remove()
    return largest.scales()
