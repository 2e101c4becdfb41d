"""Run of training: state, steps, checkpoints and flags that all objectives share."""

import argparse
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dlm.cli.command_line import CommandParser
from training import batches, directory, steps
from training.batches import BatchSource
from training.objective import Loss, TrainingBatch

AVERAGED = 0.998  # share of the running average of the weights that a step keeps
SHOWN = 50  # steps between lines of the log


@runtime_checkable
class Objective(Protocol):
    """Network in training, and what is minimised."""

    @property
    def network(self) -> torch.nn.Module: ...

    def unsure(self, pool: TrainingBatch) -> Float[Tensor, "B T"]:
        """Return the cross-entropy in nats of each answer token, 0 elsewhere, without gradient."""
        ...

    def loss(self, batch: TrainingBatch, step: int, rng: torch.Generator) -> Loss: ...

    def write(self, weights: dict[str, Tensor], out: Path) -> None:
        """Write a directory in Hugging Face layout."""
        ...


@dataclass
class TrainingRun:
    """State of a run: what a checkpoint stores and a resumed run continues from."""

    objective: Objective
    out: Path
    average: dict[str, Tensor]
    optimisers: list[torch.optim.Optimizer]
    telling: Bool[Tensor, " V"]  # which tokens have content
    step: int = 0
    seconds: float = 0.0

    @classmethod
    def begun(cls, objective: Objective, out: Path, device: str) -> "TrainingRun":
        """Return a new run, or one resumed where it stopped; `out` has a tokenizer."""
        average = {name: t.clone() for name, t in objective.network.state_dict().items()}
        telling = steps.telling(out).to(device)
        run = cls(objective, out, average, steps.optimisers(objective.network), telling)
        if (out / directory.STATE).exists():
            run.load(device)
            print(f"resuming at step {run.step}", flush=True)
        return run

    def save(self) -> None:
        """Write the state, and the average of the weights as a model."""
        path = self.out / directory.STATE
        state = {
            "model": self.objective.network.state_dict(),
            "average": self.average,
            "optimizers": [o.state_dict() for o in self.optimisers],
            "step": self.step,
            "seconds": self.seconds,
        }
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").rename(path)
        self.objective.write({name: t.cpu() for name, t in self.average.items()}, self.out)

    def load(self, device: str) -> None:
        path = self.out / directory.STATE
        state = torch.load(path, weights_only=True, map_location=device)
        self.objective.network.load_state_dict(state["model"])
        self.average = state["average"]
        for optimiser, saved in zip(self.optimisers, state["optimizers"], strict=True):
            optimiser.load_state_dict(saved)
        self.step, self.seconds = state["step"], state["seconds"]

    def train(
        self,
        args: argparse.Namespace,
        copying: Callable[[int], float],
        clock: Callable[[], float] = time.monotonic,
        plain: bool = False,
        canvases: int = batches.CANVASES,
    ) -> None:
        """Take steps within the budget of `args`, and save.

        `copying(step)` is the share of plain copying. `clock` counts the seconds of the budget.
        `plain` samples have neither tools nor reasoning. Each has some `canvases`.
        """
        source = BatchSource(
            directory=self.out,
            seed=args.seed,
            size=args.batch * args.pool,
            context=args.context,
            plain=plain,
            canvases=canvases,
        )
        started = clock() - self.seconds
        kept = started + self.seconds
        shown: list[Tensor] = []
        for pool in batches.batches(source, self.step, copying, args.workers):
            done = max(self.step / args.steps, self.seconds / 60 / args.minutes)
            if done >= 1:
                break
            shown.append(self.advance(pool, done, args))
            self.seconds = clock() - started
            if self.step % SHOWN == 0:
                losses = "  ".join(f"{mean:.4f}" for mean in torch.stack(shown).mean(0).tolist())
                shown.clear()
                print(f"{self.step:6} {self.seconds:7.0f} s  {losses}", flush=True)
            now = clock()
            if self.step % args.save == 0 or now - kept >= 60 * args.save_minutes:
                self.save()
                kept = now
        self.save()

    def advance(self, pool: TrainingBatch, done: float, args: argparse.Namespace) -> Tensor:
        """Take one step of the optimisers on some samples of the pool.

        Returns both losses of these samples, and the next-token loss of the whole pool.
        """
        network, device = self.objective.network, args.device
        rng = torch.Generator(device).manual_seed(args.seed * 1_000_003 + self.step)
        for group in itertools.chain.from_iterable(o.param_groups for o in self.optimisers):
            group["lr"] = group["peak"] * args.peak * steps.rate(self.step, done, args.rise)
        pool = pool.each(lambda tensor: tensor.to(device, non_blocking=True))
        with torch.autocast(device, torch.bfloat16, enabled=args.bf16):
            known = self.objective.unsure(pool)
            scores = steps.mistakes(known, pool, self.telling)
            batch = steps.chosen(pool, scores, max(1, len(scores) // args.pool), done, rng)
            now = self.objective.loss(batch, self.step, rng)
        for optimiser in self.optimisers:
            optimiser.zero_grad()
        now.total.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
        keep = min(AVERAGED, (self.step + 1) / (self.step + 10))
        now_at = network.state_dict()
        torch._foreach_lerp_(  # pyright: ignore[reportPrivateImportUsage]
            list(self.average.values()), [now_at[n] for n in self.average], 1 - keep
        )
        self.step += 1
        return torch.stack((now.diffusion, now.next_token, known[pool.answered].mean())).detach()


def parser_of(description: str | None, out: str) -> CommandParser:
    """Return a parser with the flags that all objectives share; `out` is the default folder."""
    parser = CommandParser(description)
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
    add("--out", default=out, metavar="DIR", help="The directory of the checkpoint.")
    return parser


def parsed(parser: CommandParser) -> argparse.Namespace:
    """Return the parsed and checked arguments, and set torch's threads."""
    args = parser.parse_args()
    if min(args.minutes, args.steps) <= 0:
        parser.error("--minutes and --steps have to be above 0")
    if args.context < batches.MAX_TOKENS:
        parser.error(f"--context must be at least {batches.MAX_TOKENS}, got {args.context}")
    torch.set_num_threads(args.threads)
    return args
