"""Formats of quantised weights: the names of an NVFP4 matrix's tensors, by the program that wrote
them.

These names show which layers of a file are quantised. A config's list of exceptions is not used: it
names modules of that program.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dlm.models import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Names of an NVFP4 matrix's tensors, after the name of their layer."""

    packed: str  # two numbers per byte
    scale: str  # of blocks of 16
    scale_2: str  # of the tensor
    input_scale: str  # of activations, if they are quantised too
    divisors: bool  # whether the file has the inverses of scale_2 and input_scale
    k_scale: str  # of an fp8 cache, after the name of the attention
    v_scale: str

    @property
    def marks(self) -> tuple[str, ...]:
        """Names that only quantised layers have."""
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


def format_of(config: Mapping[str, Any], legacy: Mapping[str, Any] | None = None) -> Format | None:
    """Return the format that a `config.json` declares; None if its weights are floats. `legacy` is
    an `hf_quant_config.json`, in which ModelOpt declares the format if `config.json` does not.
    Raises `CheckpointError` for another quantisation."""
    settings = config.get("quantization_config")
    if settings is None and legacy is not None:
        settings = {
            "quant_method": "modelopt",
            **_mapping(legacy.get("quantization"), "quantization"),
        }
    if settings is None:
        return None
    settings = _mapping(settings, "quantization_config")
    groups = _mapping(settings.get("config_groups") or {}, "config_groups")
    weights = [_mapping(_mapping(g, n).get("weights") or {}, n) for n, g in groups.items()]
    for size in [each.get("group_size") for each in (settings, *weights)]:
        if size not in (16, None):
            raise _unknown(f"group_size {size!r}")
    match settings.get("quant_method"):
        case "modelopt":
            if settings.get("quant_algo") not in _ALGORITHMS:
                raise _unknown(f"quant_algo {settings.get('quant_algo')!r}")
            return MODELOPT
        case "compressed-tensors":
            packings = [each.get("format") or settings.get("format") for each in groups.values()]
            if other := [p for p in packings or [settings.get("format")] if p != _PACKING]:
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
