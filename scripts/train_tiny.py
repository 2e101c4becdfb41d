"""Train the built-in checkpoint.

    python scripts/train_tiny.py --minutes 90 --out runs/tiny

Writes a directory in Hugging Face layout that transformers' own DiffusionGemmaForBlockDiffusion
loads. Stop it at any time: the same command goes on from its last checkpoint. `--warm DIR` begins
with a directory's weights and tokenizer; missing layers and neurons are added.
"""

import argparse
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from training import directory, steps
from training.objective import Loss, Step, TrainingBatch, loss, unsure
from training.run import TrainingRun, parsed, parser_of

from dlm.models import DiffusionGemma, ModelConfig, checkpoint
from dlm.models.families import DEFAULT
from dlm.samplers import EntropyBound

BEFORE = (1, 1, 2, 4)  # steps of decoding before canvases are scored, in turns


@dataclass(frozen=True)
class UniformDiffusion:
    """Objective of noisy canvases."""

    network: DiffusionGemma
    config: Mapping[str, Any]  # config.json
    denoise: Step

    def unsure(self, pool: TrainingBatch) -> Float[Tensor, "B T"]:
        return unsure(self.network, pool)

    def loss(self, batch: TrainingBatch, step: int, rng: torch.Generator) -> Loss:
        return loss(self.network, batch, BEFORE[step % len(BEFORE)], self.denoise, rng)

    def write(self, weights: dict[str, Tensor], out: Path) -> None:
        directory.write(weights, self.config, out)


def main() -> None:
    args = arguments()
    out, warm = Path(args.out), args.warm and Path(args.warm)
    if warm and not (out / directory.CONFIG).exists():
        others = shutil.ignore_patterns(directory.STATE, directory.CONFIG)
        shutil.copytree(warm, out, ignore=others, dirs_exist_ok=True)
    directory.prepare(out, args.seed)
    config = json.loads((out / directory.CONFIG).read_text())
    text = config["text_config"]
    text["max_position_embeddings"] = max(text["max_position_embeddings"], args.context)
    run = TrainingRun.begun(objective(args, config, out, warm), out, args.device)
    run.train(args, (lambda step: 0.0) if warm else steps.copying)


def objective(
    args: argparse.Namespace, config: dict[str, Any], out: Path, warm: Path | None
) -> UniformDiffusion:
    """Return a new network, or one with the weights of `warm`."""
    torch.manual_seed(args.seed)
    shapes = ModelConfig.from_hf(config)
    if warm:
        model = steps.grown(cast(DiffusionGemma, checkpoint.load(warm)), shapes)
    else:
        model = steps.initialised(shapes)
    model = model.to(args.device).requires_grad_(True).train()
    steps.prepare(model, args.compile)
    generation = json.loads((out / "generation_config.json").read_text())
    _, settings = DEFAULT.sampler({}, generation)
    return UniformDiffusion(model, config, steps.step_of(EntropyBound(**settings)))


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, "runs/tiny")
    parser.add_argument("--compile", action="store_true", help="Compile the layers.")
    purpose = "A directory whose weights and tokenizer begin the run."
    parser.add_argument("--warm", metavar="DIR", help=purpose)
    return parsed(parser)


if __name__ == "__main__":
    main()
