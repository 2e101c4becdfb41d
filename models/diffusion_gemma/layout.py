"""Map from the tensors of a file to the parameters of a model: names, shapes, types, and parts.

Weights in NVFP4 have the tensor names of the program that wrote them (`Format`). These names show
which layers are quantised. A config's list of exceptions is not used: it names modules of that
program.

Files store experts one by one where the model holds a stack, and gate and up apart where it holds
one matrix. The text stack lies under `model.decoder.`; the encoder shares its weights and adds one
scalar per layer. A vision tower may be present; `vision.py` reads it.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from dlm.models import BackendError, CheckpointError
from dlm.models.backends import Dispatch, padded
from dlm.models.diffusion_gemma.config import ModelConfig
from dlm.models.diffusion_gemma.layers import Attention, Experts, GatedMLP, NVFP4Linear, NVFP4Weight
from dlm.models.diffusion_gemma.model import DiffusionGemma


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


def adapt(
    model: DiffusionGemma, names: Collection[str], form: Format | None, dispatch: Dispatch
) -> None:
    """Adapt `model`, whose weights are floats without data, to a file with tensors `names`, and to
    run as `dispatch` requests.

    A layer is in NVFP4 if a tensor has its name and one of the format's marks. The inner size of
    experts that kernels run is padded to whole groups: zeros there change no result.
    """
    marks = form.marks if form else ()
    quantised = {name.rpartition(".")[0] for name in names if name.rpartition(".")[2] in marks}
    for name, module in [*model.named_modules()]:
        if isinstance(module, nn.Linear) and _DECODER + name in quantised:
            model.set_submodule(name, NVFP4Linear(module.in_features, module.out_features))
    linear = [module for module in model.modules() if isinstance(module, NVFP4Linear)]
    rows = {"experts": [model.config.hidden_size]}
    if linear:
        rows["nvfp4"] = [module.in_features for module in linear]
    head_dims = {layer.head_dim for layer in model.config.layers}
    model.backends, model.tuned = dispatch.backends(rows, head_dims), dispatch.tuned
    for module in linear:
        module.backend, module.activation_bits = model.backends["nvfp4"], dispatch.activation_bits
        module.tuned = dispatch.tuned
    for name, module in model.named_modules():
        if isinstance(module, Experts):
            module.backend, module.tuned = model.backends["experts"], dispatch.tuned
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
            found |= _linear(path, name, module, form)
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


def blank(
    model: DiffusionGemma, wanted: Mapping[str, Place], dispatch: Dispatch
) -> dict[str, Tensor]:
    """Return zeros for all that `wanted` fills in a model without data, by name in the model. If
    kernels run layers, the matrices of linear layers with the same input are adjacent: one product
    computes them all."""
    shapes = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    held = {
        place.parameter: place.held or dispatch.dtype
        for place in wanted.values()
        if place.parameter is not None
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


def side_by_side(model: DiffusionGemma) -> list[list[str]]:
    """Return the names of the matrices in each group of linear layers that read the same input."""
    return [
        [f"{name}.{each}.weight" for each in module.side_by_side]
        for name, module in model.named_modules()
        if isinstance(module, Attention | GatedMLP)
    ]


def give(model: DiffusionGemma, tensors: dict[str, Tensor]) -> DiffusionGemma:
    """Put `tensors` into a model without data, and make it ready to run. `tensors` is empty
    afterwards."""
    kept = model.state_dict().keys()
    model.load_state_dict({name: tensors[name] for name in kept}, assign=True)
    for name in tensors.keys() - kept:  # buffers that are not saved
        module, _, buffer = name.rpartition(".")
        setattr(model.get_submodule(module), buffer, tensors[name])
    tensors.clear()  # tiling a stack needs the memory of the previous one
    for module in model.modules():
        if isinstance(module, Experts):
            module.prepare()
        if isinstance(module, NVFP4Linear) and module.takes_tiles:
            module.weight.tile()
    return model.requires_grad_(False).eval()


def _linear(path: str, name: str, module: NVFP4Linear, form: Format) -> dict[str, Place]:
    shape = module.out_features, module.in_features
    scale = _number_place(f"{name}.input_scale", form, _whole)
    if module.activation_bits == 16:
        scale = replace(scale, default=torch.nan)
    matrix = _nvfp4(path, f"{name}.weight", shape, form, _whole, _whole)
    return {**matrix, f"{path}.{form.input_scale}": scale}


def _number_place(parameter: str, form: Format, part: Callable[[Tensor], Tensor]) -> Place:
    """Return the place of a scale of a whole tensor, or of activations."""
    return replace(_as_stored(parameter, (), torch.float32, part), divisor=form.divisors)


def _as_stored(
    parameter: str, shape: tuple[int, ...], dtype: torch.dtype, part: Callable[[Tensor], Tensor]
) -> Place:
    """Return the place of a tensor that a model holds in the type of the file."""
    return Place(parameter=parameter, shape=shape, stored=dtype, held=dtype, part=part)


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
            found |= _nvfp4(one, parameter, (R, C), form, block, number)
            scale = unread
            if module.input_scale is not None:
                number = partial(_number, e=e, index=first + index)
                scale = _number_place(f"{name}.input_scale", form, number)
            found[f"{one}.{form.input_scale}"] = scale
    return found


def _nvfp4(
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
        f"{path}.{form.scale_2}": _number_place(f"{parameter}.scale_2", form, number),
    }


def _whole(parameter: Tensor, C: int | None = None) -> Tensor:
    return parameter


def _unpadded_stack(stack: Tensor, parts: int, R: int, C: int) -> Tensor:
    """Return a stack without the padding for kernels: `[E, parts, R, C]`."""
    return stack.unflatten(1, (parts, -1))[:, :, :R, :C]


def _block(stack: Tensor, e: int, index: int, parts: int, R: int, C: int) -> Tensor:
    """Return one projection of one expert without the padding for kernels: `[R, C]`."""
    return stack[e].unflatten(0, (parts, -1))[index, :R, :C]


def _number(scales: Tensor, e: int, index: int) -> Tensor:
    return scales[e, index]
