"""Compare the engine with transformers' own `generate`, on the same model, tasks and machine.

    python scripts/evaluate.py transformers --prompts 100

Extractions are answered one at a time on both sides and in turns, so that a noisy machine is noisy
for both, without the constraint and with it: in transformers' `generate` by logits processors. The
random streams differ; the distribution has to be the same, so the exact answers without a
constraint have to agree within their error.

    python scripts/evaluate.py transformers --vocab 262144 --json

Measures the time and the memory of one step of 256 positions on both sides, the engine's under a
JSON schema, each in a process of its own, on the same random model. Time is the median of a few
steps. Memory is the peak of the process in these steps minus its memory after loading the model and
making a first canvas.
"""

import argparse
import ctypes
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, cast

import torch
from measure.options import MeasureParser
from measure.report import ResultRow, print_rows
from measure.schemas import L, tokenizer_of
from measure.weightless import TokenChat, fill_
from scipy import stats
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion

import dlm
from dlm.chat import Chat
from dlm.engine import BUILT_IN
from dlm.grammar import Reasoning
from dlm.integrations.transformers import Constrain
from dlm.models import DiffusionGemma, checkpoint
from evaluation.tasks import EvaluationTask, extractions
from evaluation.values import is_exact, is_valid

ROOT = Path(__file__).parents[2]
_KINDS = ["sliding_attention", "full_attention"]
_PROMPT = [2]


def main(command: str) -> None:
    args = arguments()
    if args.side:
        run = SIDES[args.side](args)
        run(1)
        print(json.dumps(run(args.steps)))
        return
    if args.vocab:
        with TemporaryDirectory() as folder:
            figures = compare_steps(args, Path(folder))
        print(json.dumps(figures, indent=None if args.json else 2))
        return
    torch.set_num_threads(1)  # the built-in model is too small for more
    rows = compare(args.model, extractions(args.prompts, args.seed), args.max_tokens)
    print_rows(rows, args.json)
    if not args.json:
        print(f"exact without the constraint, by chance this unlike: p = {likeness(rows):.2g}")


def arguments() -> argparse.Namespace:
    parser = MeasureParser(__doc__, "model", "tokenizer", "seed", "json")
    parser.set_defaults(model=str(BUILT_IN))
    parser.add_count("--prompts", 100, "The prompts that both sides answer.")
    parser.add_count("--max-tokens", 96, "The most tokens of an answer.")
    add = parser.add_argument
    purpose = "Measure one step of a random model with a vocabulary of V tokens instead."
    add("--vocab", type=int, metavar="V", help=purpose)
    parser.add_count("--steps", 4, "The steps that are timed.")
    schema = ROOT / "examples" / "invoice.json"
    add("--schema", type=Path, default=schema, metavar="FILE", help="The schema of the step.")
    add("--side", choices=SIDES, help="Run only one side of a step, in this process.")
    return parser.parsed()


@dataclass(kw_only=True)
class SideRow(ResultRow):
    """Answers of one side, with or without the constraint."""

    COLUMNS: ClassVar = {
        "by": "{0.by}",
        "constraint": "{0.constraint}",
        "valid": "{0.valid}/{0.prompts}",
        "exact": "{0.exact}/{0.prompts}",
        "passes": "{0.passes_per_prompt:.2f}",
        "ms/pass": "{0.milliseconds:.2f}",
    }

    by: str
    constrained: bool
    prompts: int
    valid: int = 0
    exact: int = 0
    passes: int = 0
    seconds: float = 0.0

    @property
    def constraint(self) -> str:
        return "yes" if self.constrained else "no"

    @property
    def passes_per_prompt(self) -> float:
        return self.passes / self.prompts

    @property
    def milliseconds(self) -> float:
        return 1000 * self.seconds / self.passes

    def add(self, task: EvaluationTask, text: str, passes: int, seconds: float) -> None:
        self.valid += is_valid(text, task.item.schema)
        self.exact += is_exact(text, task.item.value)
        self.passes += passes
        self.seconds += seconds


def compare(directory: str, tasks: Sequence[EvaluationTask], max_tokens: int) -> list[SideRow]:
    """Answer all tasks on both sides, without the constraint and with it."""
    engine = dlm.Engine.load(directory, device="cpu", slots=1, decoding="canvas")
    thoughts = Reasoning.of(engine.vocabulary)
    if thoughts is None:
        raise SystemExit(f"{directory}: its tokenizer has no markers of reasoning")
    reference = DiffusionGemmaForBlockDiffusion.from_pretrained(directory).eval()
    constrain = Constrain(reference, engine.chat.tokenizer)
    rows = [
        SideRow(by=by, constrained=constrained, prompts=len(tasks))
        for constrained in (False, True)
        for by in SIDES
    ]
    for task in tasks:
        for ours, theirs in (rows[:2], rows[2:]):
            spec = task.spec({}) if ours.constrained else None
            if spec is not None:
                engine.compile(spec).result()
            request = task.request(spec, max_tokens, 1)
            tokens = engine.chat.prompt(request)
            started = time.perf_counter()
            result = engine.generate(request)
            seconds = time.perf_counter() - started
            ours.add(task, result.text, result.stats.denoiser_calls, seconds)

            processors = constrain(spec, max_new_tokens=max_tokens)
            torch.manual_seed(task.seed)
            inputs: Any = torch.tensor([tokens])
            started = time.perf_counter()
            output: Any = reference.generate(
                inputs, max_new_tokens=max_tokens, logits_processor=processors
            )
            seconds = time.perf_counter() - started
            answer = [token for token in output.sequences[0, len(tokens) :].tolist() if token != 0]
            passes = round(len(answer) / output.tokens_per_forward.item())
            text = engine.vocabulary.text(thoughts.split(answer)[1])
            theirs.add(task, text, passes, seconds)
    engine.close()
    return rows


def likeness(rows: Sequence[SideRow]) -> float:
    """Return how likely shares of exact answers without a constraint are so unlike by chance."""
    counts = [[row.exact, row.prompts - row.exact] for row in rows if not row.constrained]
    result: Any = stats.fisher_exact(counts)
    return float(result.pvalue)


def compare_steps(args: argparse.Namespace, folder: Path) -> dict[str, dict[str, float]]:
    """Return the figures of both sides, on a model that is written to `folder`."""
    torch.manual_seed(0)
    DiffusionGemmaForBlockDiffusion(config(args.vocab)).save_pretrained(folder)
    command = [sys.executable, ROOT / "scripts" / "evaluate.py", "transformers"]
    command += ["--model", folder, "--steps", args.steps]
    command += ["--schema", args.schema]
    command += ["--tokenizer", args.tokenizer] if args.tokenizer else []
    figures = {}
    for side in SIDES:
        output = subprocess.run(
            [*map(str, command), "--side", side], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        figures[side] = json.loads(output)
    return figures


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

    def figures(self) -> dict[str, float]:
        """Return the figures, without the first step, which has no soft embedding."""
        steps = [b - a for a, b in zip(self._times[1:], self._times[2:], strict=False)]
        peak = _memory("VmHWM") - self._before
        return {"seconds_per_step": statistics.median(steps), "peak_bytes": peak}


def _memory(name: str) -> int:
    """Return a figure of this process in bytes, as Linux counts it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {name}: this runs on Linux alone")


def by_engine(args: argparse.Namespace) -> Callable[[int], dict[str, float]]:
    model = cast(DiffusionGemma, checkpoint.load(args.model))
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
        return meter.figures()

    return run


def by_transformers(args: argparse.Namespace) -> Callable[[int], dict[str, float]]:
    model = DiffusionGemmaForBlockDiffusion.from_pretrained(args.model).eval()

    def run(steps: int) -> dict[str, float]:
        inputs: Any = torch.tensor([_PROMPT])
        meter = StepMeter()
        streamer: Any = _DraftCounter(meter)
        model.generate(inputs, max_new_tokens=L, max_denoising_steps=steps + 1, streamer=streamer)
        return meter.figures()

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
