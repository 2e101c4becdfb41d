"""Compare the engine with transformers' own `generate`, on the same model, prompts and machine.

    python scripts/compare_transformers.py --prompts 100

Unconstrained, one prompt at a time on both sides and in turns, so that a noisy machine is noisy for
both. Prints exact-match rates, which have to agree within their error, and seconds a denoising
step. The random streams differ; the distribution has to be the same.

    python scripts/compare_transformers.py --vocab 262144 --json

Measures the time and the memory of one step of 256 positions on both sides, the engine's under a
JSON schema, each in a process of its own, on the same random model. Time is the median of a few
steps. Memory is the peak of the process in these steps minus its memory after loading the model and
making a first canvas.
"""

import argparse
import ctypes
import gc
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch
from measure.options import MeasureParser
from measure.schemas import L, tokenizer_of
from measure.weightless import TokenChat, fill_
from training.extraction import extract
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion

import dlm
from dlm.chat import Chat
from dlm.cli.compare.judging import is_exact
from dlm.engine import BUILT_IN
from dlm.grammar import Reasoning
from dlm.models import checkpoint

_SCHEMA = Path(__file__).parent.parent / "examples" / "invoice.json"
_KINDS = ["sliding_attention", "full_attention"]
_PROMPT = [2]


def main() -> None:
    args = arguments()
    if args.side:
        run = SIDES[args.side](args)
        run(1)
        print(json.dumps(run(args.steps)))
    elif args.vocab:
        with TemporaryDirectory() as folder:
            found = compare_steps(args, Path(folder))
        print(json.dumps(found, indent=None if args.json else 2))
    else:
        found = compare(args.model, args.prompts, args.seed, args.max_tokens)
        print(json.dumps(found, indent=2))


def arguments() -> argparse.Namespace:
    parser = MeasureParser(__doc__, "model", "tokenizer", "seed", "json")
    parser.set_defaults(model=str(BUILT_IN))
    parser.add_count("--prompts", 100, "The prompts that both sides answer.")
    parser.add_count("--max-tokens", 96, "The most tokens of an answer.")
    add = parser.add_argument
    purpose = "Measure one step of a random model with a vocabulary of V tokens instead."
    add("--vocab", type=int, metavar="V", help=purpose)
    parser.add_count("--steps", 4, "The steps that are timed.")
    add("--schema", type=Path, default=_SCHEMA, metavar="FILE", help="The schema of the step.")
    add("--side", choices=SIDES, help="Run only one side of a step, in this process.")
    return parser.parsed()


def compare(directory: str, prompts: int, seed: int, max_tokens: int) -> dict[str, float]:
    """Answer held-out prompts on both sides; return exact-match rates and times of steps."""
    engine = dlm.Engine.load(directory, device="cpu", slots=1)
    thoughts = Reasoning.of(engine.vocabulary)
    if thoughts is None:
        raise SystemExit(f"{directory}: its tokenizer has no markers of reasoning")
    reference = DiffusionGemmaForBlockDiffusion.from_pretrained(directory).eval()
    random = Random(f"compare/{seed}")
    ours = theirs = our_calls = their_calls = 0
    our_seconds = their_seconds = 0.0
    for i in range(prompts):
        item = extract(random, "heldout")
        request = dlm.Request(
            prompt=item.prompt,
            max_tokens=max_tokens,
            seed=seed * 1_000_003 + i,
            thinking=item.thought is not None,
        )
        tokens = engine.chat.prompt(request)

        started = time.perf_counter()
        result = engine.generate(request)
        our_seconds += time.perf_counter() - started
        our_calls += result.stats.denoiser_calls
        ours += is_exact(result.text, item.value)

        torch.manual_seed(seed * 1_000_003 + i)
        started = time.perf_counter()
        inputs: Any = torch.tensor([tokens])
        output: Any = reference.generate(inputs, max_new_tokens=max_tokens)
        their_seconds += time.perf_counter() - started
        answer = [token for token in output.sequences[0, len(tokens) :].tolist() if token != 0]
        their_calls += round(len(answer) / output.tokens_per_forward.item())
        theirs += is_exact(engine.vocabulary.text(thoughts.split(answer)[1]), item.value)
    pooled = (ours + theirs) / (2 * prompts)
    error = math.sqrt(max(pooled * (1 - pooled), 1e-9) * 2 / prompts)
    return {
        "prompts": prompts,
        "exact": ours / prompts,
        "exact_transformers": theirs / prompts,
        "standard_errors_apart": abs(ours - theirs) / prompts / error,
        "calls": our_calls / prompts,
        "calls_transformers": their_calls / prompts,
        "milliseconds_a_step": 1000 * our_seconds / our_calls,
        "milliseconds_a_step_transformers": 1000 * their_seconds / their_calls,
        "speed": (their_seconds / their_calls) / (our_seconds / our_calls),
    }


def compare_steps(args: argparse.Namespace, folder: Path) -> dict[str, dict[str, float]]:
    """Return the figures of both sides, on a model that is written to `folder`."""
    torch.manual_seed(0)
    DiffusionGemmaForBlockDiffusion(config(args.vocab)).save_pretrained(folder)
    command = [sys.executable, __file__, "--model", folder, "--steps", args.steps]
    command += ["--schema", args.schema]
    command += ["--tokenizer", args.tokenizer] if args.tokenizer else []
    found = {}
    for side in SIDES:
        output = subprocess.run(
            [*map(str, command), "--side", side], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        found[side] = json.loads(output)
    return found


def config(vocab: int) -> DiffusionGemmaConfig:
    """Return a config of two narrow layers, so that the vocabulary dominates a step."""
    vision = {"model_type": "gemma4_vision", "hidden_size": 16, "intermediate_size": 16}
    vision |= {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    return DiffusionGemmaConfig(
        text_config={
            "vocab_size": vocab,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": len(_KINDS),
            "layer_types": _KINDS,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "global_head_dim": 32,
            "num_global_key_value_heads": 1,
            "sliding_window": 64,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 64,
            "max_position_embeddings": 4 * L,
        },
        vision_config=vision | {"head_dim": 16},
        canvas_length=L,
    )


class StepMeter:
    """A meter of the time and memory of steps; `step` is called after each."""

    def __init__(self) -> None:
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        self._before, self._times = _memory("VmRSS"), [time.perf_counter()]

    def step(self) -> None:
        self._times.append(time.perf_counter())

    def found(self) -> dict[str, float]:
        """Return the figures, without the first step, which has no soft embedding."""
        each = [b - a for a, b in zip(self._times[1:], self._times[2:], strict=False)]
        peak = _memory("VmHWM") - self._before
        return {"seconds_per_step": statistics.median(each), "peak_bytes": peak}


def _memory(name: str) -> int:
    """Return a figure of this process in bytes, as Linux counts it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {name}: this runs on Linux alone")


def by_engine(args: argparse.Namespace) -> Callable[[int], dict[str, float]]:
    model = checkpoint.load(args.model)
    chat = TokenChat(tokenizer_of(args.tokenizer)) if args.tokenizer else Chat.load(BUILT_IN)
    fill_(chat.tokenizer, model.vocab_size)
    engine = dlm.Engine(model, chat, slots=1)
    spec = dlm.JsonSchema(args.schema.read_text())
    engine.compile(spec).result()

    def run(steps: int) -> dict[str, float]:
        request = dlm.Request(token_ids=_PROMPT, constraint=spec, max_tokens=L)
        meter, number, drafts = StepMeter(), engine.add(request), 0
        while drafts < steps + 1:
            drafts += sum(isinstance(event, dlm.Draft) for event in engine.step())
            meter.step()
        engine.cancel(number)
        return meter.found()

    return run


def by_transformers(args: argparse.Namespace) -> Callable[[int], dict[str, float]]:
    model = DiffusionGemmaForBlockDiffusion.from_pretrained(args.model).eval()

    def run(steps: int) -> dict[str, float]:
        inputs: Any = torch.tensor([_PROMPT])
        meter = StepMeter()
        streamer: Any = _DraftCounter(meter)
        model.generate(inputs, max_new_tokens=L, max_denoising_steps=steps + 1, streamer=streamer)
        return meter.found()

    return run


class _DraftCounter:
    """A streamer that calls the meter after each draft."""

    def __init__(self, meter: StepMeter):
        self._meter = meter

    def put(self, value: Any) -> None: ...

    def put_draft(self, value: Any) -> None:
        self._meter.step()

    def end(self) -> None: ...


SIDES = {"dlm": by_engine, "transformers": by_transformers}


if __name__ == "__main__":
    main()
