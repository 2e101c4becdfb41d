"""Model directories in Hugging Face layout: read strictly, written exactly.

A directory holds `config.json`, which names the family, and files of tensors. The family's layout
maps these to places in its network.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dlm.models import CheckpointError
from dlm.models.backends import Dispatch, Kernels
from dlm.models.formats import Format, format_of
from dlm.models.json_files import read_json
from dlm.models.layout import Layout
from dlm.models.layouts import layout_of
from dlm.models.places import Place, blank, give
from dlm.models.shape import ModelShape
from dlm.models.tensor_files import TensorHeader, headers_of, listed, opened
from dlm.models.text_stack import TextStack

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def load(
    directory: str | Path,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    kernels: Kernels = "auto",
    activation_bits: int = 16,
) -> TextStack:
    """Load the model of `directory` on `device`: floats in `dtype`, NVFP4 as it is.

    `kernels` are the requested backends; `model.backends` has the choice. `activation_bits` is 16,
    or 4 to quantise activations of NVFP4 matrices too, those of experts if both of their stacks are
    in NVFP4. Beside the model, one tensor of a file at a time is in memory.

    Before any weight is read, raises `CheckpointError` unless tensors on disk and in the text stack
    match in name, shape and type, and `BackendError` for kernels that cannot run.
    """
    dispatch = Dispatch(
        device=torch.device(device),
        dtype=dtype,
        kernels=kernels,
        activation_bits=activation_bits,
    )
    model, headers, wanted = _matched(Path(directory), dispatch)
    _fill(model, headers, wanted, dispatch)
    return model


def config_of(directory: str | Path) -> ModelShape:
    """Return the config of `directory`. Raises `CheckpointError` if its tensors do not fit it."""
    return _matched(Path(directory), Dispatch(kernels="torch"))[0].config


def format_in(directory: Path) -> Format | None:
    """Return the format of the weights that a directory declares, as `format_of` does."""
    older = directory / "hf_quant_config.json"
    legacy = read_json(older) if older.exists() else None
    return format_of(read_json(directory / "config.json"), legacy)


def _matched(
    directory: Path, dispatch: Dispatch
) -> tuple[TextStack, dict[str, TensorHeader], dict[str, Place]]:
    """Return a model without data, the tensors of `directory`, and their matching places in the
    model."""
    settings = read_json(directory / "config.json")
    layout = layout_of(settings)
    config = layout.config(settings)
    form = format_in(directory)
    headers, problems = headers_of(directory)
    model = layout.adapted(config, headers, form, dispatch)
    wanted = layout.places(model, form)
    problems += _misfits(headers, wanted, layout)
    if problems:
        raise CheckpointError(f"{directory} does not fit its config.json: {listed(problems)}")
    return model, headers, wanted


def save(
    model: TextStack,
    directory: str | Path,
    config: Mapping[str, Any],
    extra: Mapping[str, Tensor],
) -> None:
    """Write `config.json` and `model.safetensors`, with `extra` tensors (a vision tower). Raises
    `CheckpointError` for a model with other weights than those of a float file."""
    layout = layout_of(config)
    with torch.device("meta"):
        plain = layout.network(model.config).state_dict()
    ours = model.state_dict()
    if {name: ours[name].shape for name in ours} != {name: plain[name].shape for name in plain}:
        raise CheckpointError("only models of floats, as a file holds them, can be written")
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: torch.cat([part.reshape(piece.shape) for piece, part in parts]).detach().cpu()
        for name, place in layout.places(model, None).items()
        if (parts := _parts(place, ours))
    }
    save_file({**tensors, **extra}, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _misfits(
    headers: Mapping[str, TensorHeader], wanted: Mapping[str, Place], layout: Layout[Any, Any]
) -> list[str]:
    """Return the problems: missing and unknown tensors, wrong shapes and types."""
    problems = [
        f"{name} is missing, expected in shape {[*place.shape]}"
        for name, place in wanted.items()
        if name not in headers and place.default is None
    ]
    for name, header in headers.items():
        place = wanted.get(name)
        if place is None:
            if layout.parameter_name(name) is not None:
                problems.append(f"{name} is no tensor of this architecture")
            continue
        if header.shape != place.shape and (place.shape, header.shape) != ((), (1,)):
            shapes = f"{[*header.shape]}, expected {[*place.shape]}"
            problems.append(f"{name} has shape {shapes}")
        if header.dtype not in ([place.stored] if place.stored else _FLOATS):
            expected = place.stored or "a float of 16 to 64 bits"
            problems.append(f"{name} is of {header.dtype}, expected {expected}")
    return problems


def _fill(
    model: TextStack,
    headers: Mapping[str, TensorHeader],
    wanted: Mapping[str, Place],
    dispatch: Dispatch,
) -> None:
    """Load the weights into `model`, which has no data yet."""
    filled = blank(model, wanted, dispatch)
    by_file: dict[Path, list[tuple[str, list[tuple[Place, Tensor]]]]] = {}
    for name, place in wanted.items():
        parts = _parts(place, filled)
        if name in headers and parts:
            by_file.setdefault(headers[name].path, []).append((name, parts))
        elif place.default is not None:
            for _, part in parts:
                part.fill_(place.default)
    for path, some in by_file.items():
        with opened(path) as file:
            for name, parts in some:
                tensor = file.get_tensor(name)
                values = [tensor]
                if len(parts) > 1:
                    values = tensor.split([piece.shape[0] for piece, _ in parts])
                for (piece, part), rows in zip(parts, values, strict=True):
                    _put(path, name, rows, piece, part)
    give(model, filled)


def _parts(place: Place, tensors: Mapping[str, Tensor]) -> list[tuple[Place, Tensor]]:
    """Return the pieces of a place and the views of `tensors`, by name in the model, that they
    fill; empty for a tensor that is not read."""
    return [
        (piece, piece.part(tensors[piece.parameter]))
        for piece in place.pieces
        if piece.parameter is not None and piece.parameter in tensors
    ]


def _put(file: Path, name: str, tensor: Tensor, place: Place, part: Tensor) -> None:
    if place.divisor:
        tensor = 1 / tensor
    if place.shape == () and not tensor.isfinite().all():
        value_name = "one over it" if place.divisor else "it"
        raise CheckpointError(f"{name} cannot be a scale: {value_name} is {tensor.item()}")
    part.copy_(tensor.view(part.shape))
    if not all_finite(part):
        raise CheckpointError(f"{file}: {name} holds NaN or infinity in {part.dtype}")


_E4M3_NAN = 0x7F  # but for the sign; this type has no infinity


def all_finite(tensor: Tensor) -> bool:
    """Return whether all numbers are finite. Reads them once, where they are, and copies none but
    those of eight bits."""
    if tensor.dtype == torch.float8_e4m3fn:
        return not bool((tensor.view(torch.uint8) & _E4M3_NAN == _E4M3_NAN).any())
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    least, most = tensor.aminmax()
    return bool(least.isfinite() & most.isfinite())
