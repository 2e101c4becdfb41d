"""Quantisation of a float checkpoint to NVFP4, with the same tensors that ModelOpt writes.

Which matrices become NVFP4 is a family's own; all other tensors stay as they are. Tensors are read
one at a time; only the calibration of activations needs the whole model in memory.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from torch import Tensor

from dlm.kernels.nvfp4 import quantize
from dlm.models import CheckpointError, checkpoint
from dlm.models.formats import MODELOPT
from dlm.models.json_files import read_json
from dlm.models.layout import Layout
from dlm.models.layouts import layout_of
from dlm.models.tensor_files import tensors, write_shards

_COPIED = (".json", ".jinja", ".model", ".txt")  # tokenizer, template, settings
_OURS = ("config.json", "model.safetensors.index.json")  # written, not copied


def quantise(
    source: str | Path, out: str | Path, canvases: int = 8, device: str | torch.device = "cpu"
) -> None:
    """Write `out`, a directory that is missing or empty, from `source`.

    The scales of activations, which W4A4 needs, are calibrated while the model denoises and commits
    `canvases` canvases of its own; with 0, the checkpoint has no such scales (ModelOpt's W4A16).
    Before any work, raises `CheckpointError` for a source that is quantised already or whose
    matrices are no whole blocks of 16, and for an `out` that is not empty; and `OSError` for one
    that cannot be written.
    """
    source, out = Path(source), Path(out)
    settings, layout = _checked(source, out, canvases)
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=out):  # it can be written
        pass
    scales: dict[str, Tensor] = {}
    if canvases:
        dtype = torch.float32 if settings.get("dtype") == "float32" else torch.bfloat16
        model = checkpoint.load(source, dtype, device, kernels="torch")
        scales = layout.quantisation.input_scales(model, canvases)
    write_shards(out, _quantised(source, layout, scales))
    for path in sorted(source.iterdir()):
        if path.suffix in _COPIED and path.name not in _OURS:
            shutil.copyfile(path, out / path.name)
    algorithm, ignored = "NVFP4" if canvases else "W4A16_NVFP4", layout.quantisation.ignored
    settings["quantization_config"] = _quantization_config(algorithm, ignored)
    (out / "config.json").write_text(json.dumps(settings, indent=2) + "\n")  # last: complete now


def _checked(source: Path, out: Path, canvases: int) -> tuple[dict[str, Any], Layout[Any, Any]]:
    """Return the source's `config.json` and its layout. Raises `CheckpointError` for invalid
    arguments."""
    config = checkpoint.config_of(source)
    settings = read_json(source / "config.json")
    layout = layout_of(settings)
    if checkpoint.format_in(source) is not None:
        raise CheckpointError(f"{source} must be a checkpoint of floats, and is quantised already")
    for what, size in layout.quantisation.blocks(config).items():
        if size % 16:
            raise CheckpointError(
                f"{source}: its {what} {size} is no multiple of NVFP4's block, 16"
            )
    if canvases < 0 or canvases * config.canvas_length > config.max_positions:
        most = config.max_positions // config.canvas_length
        raise CheckpointError(f"canvases is {canvases}: the model takes 0 to {most}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out} is there and is no empty directory")
    return settings, layout


def _quantised(
    source: Path, layout: Layout[Any, Any], scales: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors of `source`, with four tensors for every matrix that is quantised."""
    for name, tensor in tensors(source):
        matrices = layout.quantisation.matrices(name, tensor)
        if matrices is None:
            yield name, tensor
            continue
        for path, matrix, scale_2 in matrices:
            w = quantize(matrix, scale_2)
            yield f"{path}.{MODELOPT.packed}", w.packed
            yield f"{path}.{MODELOPT.scale}", w.scale
            yield f"{path}.{MODELOPT.scale_2}", w.scale_2.clone()
            if name in scales:
                yield f"{path}.{MODELOPT.input_scale}", scales[name].clone()


def _quantization_config(algorithm: str, ignored: Sequence[str]) -> dict[str, Any]:
    """Return ModelOpt's entry in the `config.json` of a model whose `ignored` modules are
    floats."""
    four_bits = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    group = {"weights": four_bits, "targets": ["Linear"]}
    if algorithm == "NVFP4":
        group["input_activations"] = four_bits
    return {
        "quant_method": "modelopt",
        "quant_algo": algorithm,
        "config_groups": {"group_0": group},
        "ignore": [*ignored],
    }
