"""A float checkpoint becomes one whose experts are NVFP4, tensor for tensor what ModelOpt writes.

Attention, dense layers, router and embedding stay as they are. Tensors are read one at a time;
only to see how large activations become does the whole model have to be in memory.
"""

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from dlm.kernels.nvfp4 import quantize, tensor_scale
from dlm.models import checkpoint
from dlm.models.errors import CheckpointError
from dlm.models.formats import MODELOPT, format_of
from dlm.models.layers import Experts
from dlm.models.layout import tensor_name
from dlm.models.model import DiffusionGemma

_PROJECTIONS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
_COPIED = (".json", ".jinja", ".model", ".txt")  # what is no weight: tokenizer, template, settings
_OURS = ("config.json", "model.safetensors.index.json")  # written anew
_PASSES = 4  # denoising passes over a canvas of calibration
SHARD = 5_000_000_000  # bytes of a file at most, one tensor aside
_IGNORED = "lm_head *embed_vision* *mlp* *router* *self_attn* *self_conditioning* *vision_tower*"

Scales = dict[str, Tensor]  # by the name of a stack on disk: `input_scale` of all its experts


def quantise(
    source: str | Path, out: str | Path, canvases: int = 8, device: str | torch.device = "cpu"
) -> None:
    """Write `out`, a directory that is not there or empty, from `source`.

    The scales of activations, which W4A4 needs, are found while the model denoises and commits so
    many canvases of its own; with none, the checkpoint has no such scales (ModelOpt's W4A16).
    Raises `CheckpointError`, before any work, for a source that is quantised already or whose
    experts are no whole blocks of 16, and where `out` holds something.
    """
    source, out = Path(source), Path(out)
    settings = _checked(source, out, canvases)
    scales: Scales = {}
    if canvases:
        dtype = torch.float32 if settings.get("dtype") == "float32" else torch.bfloat16
        scales = _input_scales(source, canvases, dtype, torch.device(device))
    out.mkdir(parents=True, exist_ok=True)
    _write_shards(out, _quantised(source, scales))
    for path in sorted(source.iterdir()):
        if path.suffix in _COPIED and path.name not in _OURS:
            shutil.copyfile(path, out / path.name)
    settings["quantization_config"] = _quantization_config("NVFP4" if canvases else "W4A16_NVFP4")
    (out / "config.json").write_text(json.dumps(settings, indent=2) + "\n")  # last: now it is whole


def _checked(source: Path, out: Path, canvases: int) -> dict[str, Any]:
    """The source's `config.json`, if all is well."""
    config = checkpoint.config_of(source)
    settings = checkpoint.read_json(source / "config.json")
    if format_of(settings) or (source / "hf_quant_config.json").exists():
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
    """All tensors of `source`, each stack of experts as four tensors for every matrix."""
    for name, tensor in checkpoint.tensors(source):
        path, _, stack = name.rpartition(".")
        if not path.endswith(".experts") or stack not in _PROJECTIONS:
            yield name, tensor
            continue
        for e, weights in enumerate(tensor):
            scale_2 = tensor_scale(weights)  # one for gate and up: they are one tensor to ModelOpt
            projections = _PROJECTIONS[stack]
            for projection, part in zip(projections, weights.chunk(len(projections)), strict=True):
                one, w = f"{path}.{e}.{projection}", quantize(part, scale_2)
                yield f"{one}.{MODELOPT.packed}", w.packed
                yield f"{one}.{MODELOPT.scale}", w.scale
                yield f"{one}.{MODELOPT.scale_2}", w.scale_2.clone()
                if name in scales:
                    yield f"{one}.{MODELOPT.input_scale}", scales[name].clone()


def _input_scales(source: Path, canvases: int, dtype: torch.dtype, device: torch.device) -> Scales:
    """What activations are divided by before their blocks are: for all experts of a layer, the
    largest in front of gate and up, and in front of down, by the largest of both formats."""
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
    _dream(model, canvases)
    return {name: amax / (6 * 448) for name, amax in largest.items()}


def _dream(model: DiffusionGemma, canvases: int) -> None:
    """Denoise and commit so many canvases, one after another, in a few passes each."""
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
    """One `model.safetensors`; or several of some size, and the index of what is where."""
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
    """What ModelOpt's `config.json` says of a model whose experts alone are quantised."""
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
