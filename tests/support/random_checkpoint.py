"""Small checkpoints of random weights for other engines, with the built-in model's tokenizer."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

Drawn = Callable[..., torch.Tensor]
"""A random matrix of a shape; its rows have a length of about 1."""


def write(
    tiny: Path,
    out: Path,
    config: dict[str, Any],
    weights: Callable[[Drawn, int], dict[str, torch.Tensor]],
    seed: int,
    files: Sequence[str] = (),
    template: str | None = None,
) -> Path:
    """Write the checkpoint `out`; `tiny` is the built-in model's folder.

    `config` is completed by what follows from the tokenizer, and `weights` gets matrices of this
    `seed` and the size of the vocabulary. `files` of `tiny` are copied beside the tokenizer, and a
    `template` of chats is written.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", *files):
        shutil.copy(tiny / name, out / name)
    if template is not None:
        (out / "chat_template.jinja").write_text(template)
    size = json.loads((tiny / "config.json").read_text())["text_config"]["vocab_size"]
    tokens = {"vocab_size": size, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
    (out / "config.json").write_text(json.dumps(config | tokens | {"torch_dtype": "float32"}))
    rng = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng) * shape[-1] ** -0.5

    save_file(weights(drawn, size), out / "model.safetensors", metadata={"format": "pt"})
    return out


def gated_mlp(drawn: Drawn, path: str, width: int, inner: int) -> dict[str, torch.Tensor]:
    """Return the matrices of an MLP with a gate."""
    return {
        f"{path}.gate_proj.weight": drawn(inner, width),
        f"{path}.up_proj.weight": drawn(inner, width),
        f"{path}.down_proj.weight": drawn(width, inner),
    }
