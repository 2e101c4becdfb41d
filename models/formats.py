"""Checkpoints with weights in NVFP4: whose they are, and what their tensors are called.

Which layers are quantised is read off the names of tensors, not off a config's list of exceptions:
such lists name modules of whatever program wrote them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dlm.models.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Names of an NVFP4 matrix's tensors, behind the name of their layer."""

    packed: str  # two numbers a byte
    scale: str  # of blocks of 16
    scale_2: str  # of the tensor
    input_scale: str  # of activations, where they are quantised too
    divisors: bool  # scale_2 and input_scale are written as one over what they mean
    k_scale: str  # of an fp8 cache, behind the name of the attention
    v_scale: str

    @property
    def marks(self) -> tuple[str, ...]:
        """Names that no float matrix has: any of them says that a layer is quantised."""
        names = (self.packed, self.scale, self.scale_2, self.input_scale)
        return tuple(name for name in names if name != "weight")


MODELOPT = Format(
    packed="weight",
    scale="weight_scale",
    scale_2="weight_scale_2",
    input_scale="input_scale",
    divisors=False,
    k_scale="k_proj.k_scale",
    v_scale="v_proj.v_scale",
)
COMPRESSED_TENSORS = Format(
    packed="weight_packed",
    scale="weight_scale",
    scale_2="weight_global_scale",
    input_scale="input_global_scale",
    divisors=True,
    k_scale="k_scale",
    v_scale="v_scale",
)
_ALGORITHMS = ("NVFP4", "W4A16_NVFP4")  # of ModelOpt: with scales for activations, and without
_PACKING = "nvfp4-pack-quantized"  # of compressed-tensors


def format_of(config: Mapping[str, Any], older: Mapping[str, Any] | None = None) -> Format | None:
    """The format that a `config.json` speaks of, or None: its weights are floats.

    `older` is an `hf_quant_config.json`, in which ModelOpt says the same where `config.json` says
    nothing. Raises `CheckpointError` for a quantisation of another kind.
    """
    told = config.get("quantization_config")
    if told is None and older is not None:
        told = {"quant_method": "modelopt", **_mapping(older.get("quantization"), "quantization")}
    if told is None:
        return None
    told = _mapping(told, "quantization_config")
    groups = _mapping(told.get("config_groups") or {}, "config_groups")
    weights = [_mapping(_mapping(g, n).get("weights") or {}, n) for n, g in groups.items()]
    for size in [each.get("group_size") for each in (told, *weights)]:
        if size not in (16, None):
            raise _unknown(f"group_size {size!r}")
    match told.get("quant_method"):
        case "modelopt":
            if told.get("quant_algo") not in _ALGORITHMS:
                raise _unknown(f"quant_algo {told.get('quant_algo')!r}")
            return MODELOPT
        case "compressed-tensors":
            packings = [each.get("format") or told.get("format") for each in groups.values()]
            if other := [p for p in packings or [told.get("format")] if p != _PACKING]:
                raise _unknown(f"format {other[0]!r}")
            return COMPRESSED_TENSORS
        case method:
            raise _unknown(f"quant_method {method!r}")


def _unknown(what: str) -> CheckpointError:
    return CheckpointError(
        f"config.json: weights quantised with {what} are not read; what is: 'modelopt' with "
        f"{' or '.join(_ALGORITHMS)}, and 'compressed-tensors' with {_PACKING}, in groups of 16"
    )


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CheckpointError(f"config.json: {name} is no JSON object")
    return value
