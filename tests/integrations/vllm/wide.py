"""A checkpoint with a real vocabulary and canvases of 256 tokens, for tests of these sizes.

    python tests/integrations/vllm/wide.py tokenizer.json[.xz] OUT

It has two layers and a random embedding. Control tokens have the names of the built-in model.
"""

import json
import lzma
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

TINY = Path(__file__).parents[3] / "models" / "tiny"
_EMBEDDING = "model.decoder.embed_tokens.weight"


def write(tokenizer: Path, out: Path) -> Path:
    """Write the directory `out`; `tokenizer` is a `tokenizer.json`, perhaps compressed."""
    shutil.copytree(TINY, out)
    read = lzma.open if tokenizer.suffix == ".xz" else open
    with read(tokenizer, "rt") as file:
        words = json.load(file)
    _name_control_tokens(words, json.loads((TINY / "tokenizer.json").read_text()))
    (out / "tokenizer.json").write_text(json.dumps(words))
    size = len(words["model"]["vocab"])
    config = json.loads((out / "config.json").read_text())
    text = config["text_config"]
    text |= {"vocab_size": size, "num_hidden_layers": 2, "layer_types": text["layer_types"][:2]}
    text["per_layer_config"] = {"1": text["per_layer_config"]["1"]}
    config["canvas_length"] = 256
    (out / "config.json").write_text(json.dumps(config))
    weights = load_file(out / "model.safetensors")
    kept = {name: w for name, w in weights.items() if not re.search(r"\.layers\.[2-9]\.", name)}
    rng, like = torch.Generator().manual_seed(0), kept[_EMBEDDING]
    drawn = torch.randn(size, like.shape[1], generator=rng) * like.float().std()
    kept[_EMBEDDING] = drawn.to(like.dtype)
    save_file(kept, out / "model.safetensors", metadata={"format": "pt"})
    return out


def _name_control_tokens(words: dict[str, Any], named: dict[str, Any]) -> None:
    """Rename the control tokens of `words` to the names in `named` with the same numbers."""
    vocab = words["model"]["vocab"]
    old = {number: name for name, number in vocab.items()}
    added = {token["id"]: token for token in words["added_tokens"]}
    for token in named["added_tokens"]:
        if token["content"].startswith("<unused"):
            continue
        vocab.pop(old[token["id"]], None)
        vocab[token["content"]] = token["id"]
        added[token["id"]] = token
    words["added_tokens"] = [added[number] for number in sorted(added)]


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
