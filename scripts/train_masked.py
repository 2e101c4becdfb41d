"""Train a small masked model in the layout of Nemotron-Labs-Diffusion.

    python scripts/train_masked.py --minutes 90 --out runs/masked

It starts from the built-in model's weights (`training/conversion.py`), not from random ones, and
reads the built-in model's lessons, without tools and reasoning, by its tokenizer. It writes left to
right and in blocks of masks. Stop it at any time: the same command goes on from its last
checkpoint. `--minutes` are those of processor time, without half a minute of conversion.
"""

import argparse
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, cast

import torch
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor
from training import batches, conversion, directory, masked, steps
from training.objective import Loss, TrainingBatch
from training.run import TrainingRun, parsed, parser_of
from transformers import Ministral3Config, Ministral3ForCausalLM

from dlm.models import DiffusionGemma, checkpoint
from dlm.models.families import BUILT_IN

MASK = 4  # token of the tokenizer
CANVASES = 4  # of each sample: canvases have more left to learn than the causal half
MEASURED = 48  # samples that the conversion measures on
CONFIG: dict[str, Any] = {
    "architectures": ["NemotronLabsDiffusionModel"],
    "model_type": "nemotron_labs_diffusion",
    "dtype": "float32",  # what to compute in; the file holds bf16
    "vocab_size": directory.VOCAB_SIZE,
    "hidden_size": 192,
    "intermediate_size": 480,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "mask_token_id": MASK,
    "block_size": directory.CANVAS,
    "bos_token_id": 2,
    "eos_token_id": directory.STOPS[0],
    "pad_token_id": 0,
    "rope_parameters": {
        "rope_type": "yarn",
        # 14 pairs turn as the built-in model's do, and 18 hardly turn, as most of its do.
        "rope_theta": 10 ** (16 / 3),
        "factor": 16.0,
        "original_max_position_embeddings": 128,  # shorter than samples: queries are scaled
        "beta_fast": 0.135,
        "beta_slow": 0.135,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}
GENERATION = {"bos_token_id": 2, "eos_token_id": directory.STOPS, "pad_token_id": 0}


@dataclass(frozen=True)
class MaskedDiffusion:
    """Objective of masked canvases."""

    network: Ministral3ForCausalLM

    def unsure(self, pool: TrainingBatch) -> Float[Tensor, "B T"]:
        return masked.unsure(self.network, pool)

    def loss(self, batch: TrainingBatch, step: int, rng: torch.Generator) -> Loss:
        return masked.loss(self.network, batch, MASK, rng)

    def write(self, weights: dict[str, Tensor], out: Path) -> None:
        """Write the weights in bf16, by the names of Nemotron-Labs-Diffusion."""
        for file, content in ((directory.CONFIG, CONFIG), ("generation_config.json", GENERATION)):
            (out / file).write_text(json.dumps(content, indent=2) + "\n")
        named = {
            name.replace("model.", "encoder.", 1).replace("lm_head", "diffusion_head"): tensor
            for name, tensor in weights.items()
        }
        tensors = {name: tensor.bfloat16() for name, tensor in named.items()}
        save_file(tensors, out / "model.safetensors", {"format": "pt"})


def main() -> None:
    args = arguments()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(BUILT_IN / name, out)
    torch.manual_seed(args.seed)
    network = initialised()
    if not (out / directory.STATE).exists():
        inherit(network, args.seed)
    run = TrainingRun.begun(MaskedDiffusion(network.to(args.device).train()), out, args.device)
    run.train(args, lambda step: 0.0, time.process_time, plain=True, canvases=CANVASES)


def inherit(network: Ministral3ForCausalLM, seed: int) -> None:
    """Set the weights to those nearest to the built-in model's, as measured on some lessons."""
    model = cast(DiffusionGemma, checkpoint.load(BUILT_IN))
    steps.prepare(model, compiled=False)
    source = batches.BatchSource(directory=BUILT_IN, seed=seed, size=MEASURED, plain=True)
    random = Random(f"{seed}/measured")
    rows = batches.drawn_rows(source, MEASURED, random, copying=0.0)
    conversion.convert(model, network, batches.batch_of(rows, random), MASK)


def initialised() -> Ministral3ForCausalLM:
    """Return a network with random weights."""
    kept = {k: v for k, v in CONFIG.items() if k not in ("architectures", "model_type")}
    network = Ministral3ForCausalLM(Ministral3Config(**kept))
    for parameter in network.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.02)
    return network


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, "runs/masked")
    parser.set_defaults(batch=12, pool=2, rise=20)
    return parsed(parser)


if __name__ == "__main__":
    main()
