"""Train the built-in checkpoint.

    python scripts/train_tiny.py --minutes 90 --out runs/tiny

Writes a directory in Hugging Face layout that transformers' own DiffusionGemmaForBlockDiffusion
loads. Stop it at any time: the same command goes on from its last checkpoint. `--warm DIR` begins
with a directory's weights and tokenizer; missing layers and neurons are added.
"""

import argparse
import itertools
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from training import batches, directory, steps
from training.batches import BatchSource
from training.objective import Step, TrainingBatch, loss, unsure

from dlm.cli.command_line import CommandParser
from dlm.models import DiffusionGemma, ModelConfig, checkpoint
from dlm.models.families import DEFAULT
from dlm.samplers import EntropyBound

BEFORE = (1, 1, 2, 4)  # steps of decoding before canvases are scored, in turns
AVERAGED = 0.998  # share of the running average of the weights that a step keeps
SHOWN = 50  # steps between lines of the log


@dataclass
class TrainingRun:
    """State of a run: what a checkpoint stores and a resumed run continues from."""

    model: DiffusionGemma
    average: dict[str, Tensor]
    optimisers: list[torch.optim.Optimizer]
    denoise: Step
    telling: Tensor  # which tokens have content
    step: int = 0
    seconds: float = 0.0

    def save(self, path: Path) -> None:
        state = {
            "model": self.model.state_dict(),
            "average": self.average,
            "optimizers": [o.state_dict() for o in self.optimisers],
            "step": self.step,
            "seconds": self.seconds,
        }
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").rename(path)

    def load(self, path: Path, device: str) -> None:
        state = torch.load(path, weights_only=True, map_location=device)
        self.model.load_state_dict(state["model"])
        self.average = state["average"]
        for optimiser, saved in zip(self.optimisers, state["optimizers"], strict=True):
            optimiser.load_state_dict(saved)
        self.step, self.seconds = state["step"], state["seconds"]


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    out, warm = Path(args.out), args.warm and Path(args.warm)
    if warm and not (out / directory.CONFIG).exists():
        others = shutil.ignore_patterns(directory.STATE, directory.CONFIG)
        shutil.copytree(warm, out, ignore=others, dirs_exist_ok=True)
    directory.prepare(out, args.seed)
    config = json.loads((out / directory.CONFIG).read_text())
    text = config["text_config"]
    text["max_position_embeddings"] = max(text["max_position_embeddings"], args.context)
    run = begun(args, config, out, warm)
    source = BatchSource(
        directory=out, seed=args.seed, size=args.batch * args.pool, context=args.context
    )
    copying = (lambda step: 0.0) if warm else steps.copying
    started = time.monotonic() - run.seconds
    kept = started + run.seconds
    shown: list[Tensor] = []
    for batch in batches.batches(source, run.step, copying, args.workers):
        done = max(run.step / args.steps, run.seconds / 60 / args.minutes)
        if done >= 1:
            break
        shown.append(advance(run, batch, done, args))
        run.seconds = time.monotonic() - started
        if run.step % SHOWN == 0:
            losses = "  ".join(f"{mean:.4f}" for mean in torch.stack(shown).mean(0).tolist())
            shown.clear()
            print(f"{run.step:6} {run.seconds:7.0f} s  {losses}", flush=True)
        now = time.monotonic()
        if run.step % args.save == 0 or now - kept >= 60 * args.save_minutes:
            keep(run, config, out)
            kept = now
    keep(run, config, out)


def keep(run: TrainingRun, config: dict[str, Any], out: Path) -> None:
    run.save(out / directory.STATE)
    directory.write({name: t.cpu() for name, t in run.average.items()}, config, out)


def begun(
    args: argparse.Namespace, config: dict[str, Any], out: Path, warm: Path | None
) -> TrainingRun:
    """Return a new run, a run from the weights of `warm`, or a run resumed where it stopped."""
    torch.manual_seed(args.seed)
    shapes = ModelConfig.from_hf(config)
    if warm:
        model = steps.grown(cast(DiffusionGemma, checkpoint.load(warm)), shapes)
    else:
        model = steps.initialised(shapes)
    model = model.to(args.device).requires_grad_(True).train()
    average = {name: t.clone() for name, t in model.state_dict().items()}
    generation = json.loads((out / "generation_config.json").read_text())
    _, settings = DEFAULT.sampler({}, generation)
    denoise = steps.step_of(EntropyBound(**settings))
    telling = steps.telling(out).to(args.device)
    run = TrainingRun(model, average, steps.optimisers(model), denoise, telling)
    if (out / directory.STATE).exists():
        run.load(out / directory.STATE, args.device)
        print(f"resuming at step {run.step}", flush=True)
    steps.prepare(model, args.compile)
    return run


def advance(run: TrainingRun, pool: TrainingBatch, done: float, args: argparse.Namespace) -> Tensor:
    """Take one step of the optimisers on some samples of the pool.

    Returns both losses of these samples, and the next-token loss of the whole pool.
    """
    model, device = run.model, args.device
    rng = torch.Generator(device).manual_seed(args.seed * 1_000_003 + run.step)
    for group in itertools.chain.from_iterable(o.param_groups for o in run.optimisers):
        group["lr"] = group["peak"] * args.peak * steps.rate(run.step, done, args.rise)
    before = BEFORE[run.step % len(BEFORE)]
    pool = pool.each(lambda tensor: tensor.to(device, non_blocking=True))
    with torch.autocast(device, torch.bfloat16, enabled=args.bf16):
        known = unsure(model, pool)
        scores = steps.mistakes(known, pool, run.telling)
        batch = steps.chosen(pool, scores, max(1, len(scores) // args.pool), done, rng)
        now = loss(model, batch, before, run.denoise, rng)
    for optimiser in run.optimisers:
        optimiser.zero_grad()
    now.total.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimiser in run.optimisers:
        optimiser.step()
    keep = min(AVERAGED, (run.step + 1) / (run.step + 10))
    now_at = model.state_dict()
    torch._foreach_lerp_(  # pyright: ignore[reportPrivateImportUsage]
        list(run.average.values()), [now_at[n] for n in run.average], 1 - keep
    )
    run.step += 1
    return torch.stack((now.diffusion, now.next_token, known[pool.answered].mean())).detach()


def arguments() -> argparse.Namespace:
    parser = CommandParser(__doc__)
    add = parser.add_argument
    purpose = "The budget in minutes, interruptions excluded."
    add("--minutes", type=float, default=1e9, metavar="M", help=purpose)
    add("--steps", type=int, default=10**9, metavar="N", help="The budget in steps.")
    add("--batch", type=int, default=40, metavar="N", help="The samples of a step.")
    purpose = "How many times as many samples a step chooses from."
    add("--pool", type=int, default=4, metavar="N", help=purpose)
    add("--seed", type=int, default=0, metavar="N", help="The seed of data and weights.")
    add("--peak", type=float, default=1.0, metavar="X", help="A factor on the learning rates.")
    purpose = "The steps up to the highest rates."
    add("--rise", type=int, default=steps.RISE, metavar="N", help=purpose)
    add("--save", type=int, default=100, metavar="N", help="The steps between checkpoints.")
    purpose = "The minutes between checkpoints, where they are fewer than --save steps."
    add("--save-minutes", type=float, default=float("inf"), metavar="M", help=purpose)
    purpose = "The most tokens of a sample; from 768 on, one batch in 16 is of long texts."
    add("--context", type=int, default=batches.MAX_TOKENS, metavar="N", help=purpose)
    threads = torch.get_num_threads()
    add("--threads", type=int, default=threads, metavar="N", help="How many threads torch uses.")
    add("--workers", type=int, default=0, metavar="N", help="The processes that make data ahead.")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    add("--device", default=device, metavar="NAME", help="The device of the training.")
    add("--bf16", action="store_true", help="Compute in bf16 by autocast.")
    add("--compile", action="store_true", help="Compile the layers.")
    add("--warm", metavar="DIR", help="A directory whose weights and tokenizer begin the run.")
    add("--out", default="runs/tiny", metavar="DIR", help="The directory of the checkpoint.")
    args = parser.parse_args()
    if min(args.minutes, args.steps) <= 0:
        parser.error("--minutes and --steps have to be above 0")
    if args.context < batches.MAX_TOKENS:
        parser.error(f"--context must be at least {batches.MAX_TOKENS}, got {args.context}")
    return args


if __name__ == "__main__":
    main()
