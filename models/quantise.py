"""Quantisation of a float checkpoint's experts to NVFP4, with the same tensors that ModelOpt
writes.

Attention, dense layers, router and embedding stay as they are. Tensors are read one at a time; only
the calibration of activations needs the whole model in memory.
"""

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from dlm.kernels.nvfp4 import quantize, tensor_scale
from dlm.models import CheckpointError, checkpoint
from dlm.models.diffusion_gemma.layers import Experts
from dlm.models.diffusion_gemma.layout import MODELOPT, tensor_name
from dlm.models.diffusion_gemma.model import DiffusionGemma

_PROJECTIONS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
_COPIED = (".json", ".jinja", ".model", ".txt")  # tokenizer, template, settings
_OURS = ("config.json", "model.safetensors.index.json")  # written, not copied
_PASSES = 4  # denoising passes over a calibration canvas
SHARD = 5_000_000_000  # maximum bytes of a file, unless one tensor is larger
_IGNORED = "lm_head *embed_vision* *mlp* *router* *self_attn* *self_conditioning* *vision_tower*"

Scales = dict[str, Tensor]  # `input_scale` of all experts, by the name of their stack on disk


def quantise(
    source: str | Path, out: str | Path, canvases: int = 8, device: str | torch.device = "cpu"
) -> None:
    """Write `out`, a directory that is missing or empty, from `source`.

    The scales of activations, which W4A4 needs, are calibrated while the model denoises and commits
    `canvases` canvases of its own; with 0, the checkpoint has no such scales (ModelOpt's W4A16).
    Before any work, raises `CheckpointError` for a source that is quantised already or whose
    experts are no whole blocks of 16, and for an `out` that is not empty; and `OSError` for one
    that cannot be written.
    """
    source, out = Path(source), Path(out)
    settings = _checked(source, out, canvases)
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=out):  # it can be written
        pass
    scales: Scales = {}
    if canvases:
        dtype = torch.float32 if settings.get("dtype") == "float32" else torch.bfloat16
        scales = _input_scales(source, canvases, dtype, torch.device(device))
    _write_shards(out, _quantised(source, scales))
    for path in sorted(source.iterdir()):
        if path.suffix in _COPIED and path.name not in _OURS:
            shutil.copyfile(path, out / path.name)
    settings["quantization_config"] = _quantization_config("NVFP4" if canvases else "W4A16_NVFP4")
    (out / "config.json").write_text(json.dumps(settings, indent=2) + "\n")  # last: complete now


def _checked(source: Path, out: Path, canvases: int) -> dict[str, Any]:
    """Return the source's `config.json`. Raises `CheckpointError` for invalid arguments."""
    config = checkpoint.config_of(source)
    settings = checkpoint.read_json(source / "config.json")
    if checkpoint.format_in(source) is not None:
        raise CheckpointError(f"{source} is quantised already: it takes a checkpoint of floats")
    for what, size in (("hidden size", config.hidden_size), ("expert size", config.expert_size)):
        if size % 16:
            raise CheckpointError(
                f"{source}: its {what} {size} is no multiple of NVFP4's block, 16"
            )
    if canvases < 0 or canvases * config.canvas_length > config.max_positions:
        most = config.max_positions // config.canvas_length
        raise CheckpointError(f"canvases is {canvases}: the model takes 0 to {most}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out} is there and is no empty directory")
    return settings


def _quantised(source: Path, scales: Scales) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors of `source`, with four tensors for every matrix of a stack of experts."""
    for name, tensor in checkpoint.tensors(source):
        path, _, stack = name.rpartition(".")
        if not path.endswith(".experts") or stack not in _PROJECTIONS:
            yield name, tensor
            continue
        for e, weights in enumerate(tensor):
            scale_2 = tensor_scale(weights)  # one for gate and up, which are one tensor to ModelOpt
            projections = _PROJECTIONS[stack]
            for projection, part in zip(projections, weights.chunk(len(projections)), strict=True):
                one, w = f"{path}.{e}.{projection}", quantize(part, scale_2)
                yield f"{one}.{MODELOPT.packed}", w.packed
                yield f"{one}.{MODELOPT.scale}", w.scale
                yield f"{one}.{MODELOPT.scale_2}", w.scale_2.clone()
                if name in scales:
                    yield f"{one}.{MODELOPT.input_scale}", scales[name].clone()


def _input_scales(source: Path, canvases: int, dtype: torch.dtype, device: torch.device) -> Scales:
    """Return the input scales: the largest activation of all experts of a layer, before gate and up
    and before down, divided by the largest numbers of both formats."""
    model = checkpoint.load(source, dtype, device, kernels="torch")
    largest: dict[str, Tensor] = {}

    def watch(name: str, activations: Tensor) -> None:
        now = activations.abs().amax().float().cpu()
        largest[name] = torch.maximum(largest.get(name, now), now)

    def hook(name: str, experts: nn.Module, args: tuple[Tensor, Tensor, Tensor]) -> None:
        x, _, chosen = args
        watch(tensor_name(f"{name}.gate_up_proj"), x)
        for e in chosen.unique().tolist():
            rows = x[(chosen == e).any(-1)]
            gate, up = F.linear(rows, experts.get_parameter("gate_up_proj")[e]).chunk(2, -1)
            watch(tensor_name(f"{name}.down_proj"), F.gelu(gate, approximate="tanh") * up)

    for name, module in model.named_modules():
        if isinstance(module, Experts):
            module.register_forward_pre_hook(partial(hook, name))
    _denoise_and_commit(model, canvases)
    return {name: amax / (6 * 448) for name, amax in largest.items()}


def _denoise_and_commit(model: DiffusionGemma, canvases: int) -> None:
    """Denoise and commit `canvases` canvases one after another, in a few passes each."""
    rng, cache = torch.Generator().manual_seed(0), model.new_cache(1)
    for _ in range(canvases):
        canvas = torch.randint(model.vocab_size, (1, model.canvas_length), generator=rng)
        canvas, soft_embedding = canvas.to(model.device), model.no_soft_embedding()[None]
        for _ in range(_PASSES):
            logits = model.denoise(canvas, soft_embedding, cache, [0])
            probabilities = model.softcapped(logits).softmax(-1)
            canvas, soft_embedding = logits.argmax(-1), model.soft_embedding(probabilities)
        model.encode(canvas.tolist(), cache, [0])


def _write_shards(out: Path, tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Write one `model.safetensors`, or several of limited size with an index."""
    shards: list[list[str]] = []
    shard: dict[str, Tensor] = {}
    total = size = 0

    def flush() -> None:
        shards.append([*shard])
        save_file(shard, out / f"{len(shards)}.part", metadata={"format": "pt"})
        shard.clear()

    for name, tensor in tensors:
        if size + tensor.nbytes > SHARD and shard:
            flush()
            size = 0
        shard[name] = tensor
        size, total = size + tensor.nbytes, total + tensor.nbytes
    flush()
    if len(shards) == 1:
        (out / "1.part").rename(out / "model.safetensors")
        return
    files = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    for i, file in enumerate(files, 1):
        (out / f"{i}.part").rename(out / file)
    index = {
        "metadata": {"total_size": total},
        "weight_map": {
            name: file for file, names in zip(files, shards, strict=True) for name in names
        },
    }
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def _quantization_config(algorithm: str) -> dict[str, Any]:
    """Return the entry in ModelOpt's `config.json` of a model with only its experts quantised."""
    four_bits = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    group = {"weights": four_bits, "targets": ["Linear"]}
    if algorithm == "NVFP4":
        group["input_activations"] = four_bits
    return {
        "quant_method": "modelopt",
        "quant_algo": algorithm,
        "config_groups": {"group_0": group},
        "ignore": _IGNORED.split(),
    }
