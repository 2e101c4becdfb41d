"""Time the step of a constraint within another engine's sampler: `LogitsGuide` on random logits.

    python scripts/bench_guide.py --tokenizer tokenizer.json[.xz] [--canvases 1,8,16,64] [--json]

Logits of `--canvases` canvases are drawn on the device, in bf16 on a GPU, and rewritten under a
JSON schema for each. In "contradicted" steps they are random, so that the grammar refuses nearly
every choice of the model; in "agreed" steps the model's choices are those that the grammar took in
the step before. Times are medians of steps, milliseconds, until the device has finished. A copy is
one between host and device. A wait is one at which the host waits for the device, as torch counts
them on a GPU. Without `--tokenizer` the vocabulary is the built-in model's.
"""

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from measure.checkout import commit
from measure.options import MeasureParser
from measure.report import add_out, print_table, write_result
from measure.schemas import GEMMA, PAD, STOPS, tokenizer_of
from torch import Tensor

from dlm.chat import Chat
from dlm.cli.command_line import numbers
from dlm.engine import BUILT_IN
from dlm.grammar import Compiler, Frontier, Guidance, JsonSchema, Vocabulary
from dlm.kernels.gpus import card_name
from dlm.logits.guided import GuidedCanvas, LogitsGuide

MODES = ("contradicted", "agreed")
_BUDGET = 4096  # tokens of an answer, which is longer than a canvas
_ITEMS = 64  # items of the array in the schema, so that its text does not end
_LEAD = 20.0  # logits of an agreed choice above all others
_SCHEMA = Path(__file__).parent.parent / "examples" / "invoice.json"


def main() -> None:
    parser = MeasureParser(__doc__, "tokenizer", "seed", "json")
    purpose = "The numbers of canvases in a step. Default: 1,8,16,64."
    parser.add_argument("--canvases", type=numbers, metavar="N,N,...", help=purpose)
    parser.set_defaults(canvases=[1, 8, 16, 64])
    parser.add_count("--rows", 256, "The positions of a canvas.")
    parser.add_count("--steps", 12, "The steps that are timed in each mode.")
    add_out(parser)
    args = parser.parsed()
    result = bench(args)
    print(json.dumps(result)) if args.json else show(result)


def bench(args: argparse.Namespace) -> dict[str, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    vocabulary = vocabulary_of(args.tokenizer)
    items = json.loads(_SCHEMA.read_text())
    spec = JsonSchema({"type": "array", "items": items, "minItems": _ITEMS})
    result: dict[str, Any] = {
        "device": card_name(device),
        "commit": commit(),
        "torch": torch.__version__,
        "vocabulary": len(vocabulary),
        "rows": args.rows,
        "steps": [],
    }
    for count in args.canvases:
        compiler = Compiler(vocabulary)
        constraints = [Frontier(compiler.compile(spec), _BUDGET) for _ in range(count)]
        guide = LogitsGuide(len(vocabulary))
        guide.warm_up(device)
        for mode in MODES:
            row = timed(guide, constraints, mode, len(vocabulary), device, args)
            result["steps"].append({"canvases": count, "mode": mode, **row})
            write_result(args.out, result)
        compiler.close()
    return result


def vocabulary_of(tokenizer: Path | None) -> Vocabulary:
    """Return Gemma's vocabulary by its tokenizer, or the built-in model's."""
    if tokenizer is None:
        own = Chat.load(BUILT_IN).tokenizer
        return Vocabulary.from_tokenizer(own, len(own), STOPS, PAD)
    other = tokenizer_of(tokenizer)
    return Vocabulary.from_tokenizer(other, min(GEMMA, len(other)), STOPS, PAD)


def timed(
    guide: LogitsGuide,
    constraints: list[Frontier],
    mode: str,
    vocab_size: int,
    device: torch.device,
    args: argparse.Namespace,
) -> dict[str, float]:
    """Return the medians of a step: milliseconds, copies, waits, and canvases held."""
    canvases = [
        GuidedCanvas(constraint=constraint, first=i * args.rows, length=args.rows)
        for i, constraint in enumerate(constraints)
    ]
    rng = torch.Generator(device).manual_seed(args.seed)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    shape = len(canvases) * args.rows, vocab_size
    logits = torch.empty(shape, dtype=dtype, device=device)
    rows: list[dict[str, float]] = []
    readings: list[Guidance | Exception] = []
    for step in range(args.steps + 1):  # the first compiles, and makes masks
        logits.normal_(generator=rng)
        if mode == "agreed" and step:
            choose_(logits, readings, args.rows)
        synchronise(device)
        copies, begin = guide.copies, time.perf_counter()
        with counted_waits(device) as waits:
            readings = guide.guide_(logits, canvases)
        synchronise(device)
        held = sum(isinstance(reading, Exception) for reading in readings)
        rows.append(
            {
                "milliseconds": 1e3 * (time.perf_counter() - begin),
                "copies": guide.copies - copies,
                "waits": len(waits),
                "held": held,
            }
        )
    return {name: statistics.median(row[name] for row in rows[1:]) for name in rows[0]}


def choose_(logits: Tensor, readings: Sequence[Guidance | Exception], length: int) -> None:
    """Make the guess of each reading the model's own choice; other canvases stay random."""
    for i, reading in enumerate(readings):
        if isinstance(reading, Guidance):
            guess = torch.tensor(reading.guess, device=logits.device)
            logits[i * length : (i + 1) * length].scatter_(1, guess[:, None], _LEAD)


@contextmanager
def counted_waits(device: torch.device) -> Iterator[list[Any]]:
    """Yield a list to which each wait for a GPU adds a warning of torch's."""
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield waits
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def show(result: dict[str, Any]) -> None:
    print(
        f"{result['device']}, commit {result['commit']}, torch {result['torch']}, "
        f"{result['vocabulary']:,} tokens, canvases of {result['rows']}."
    )
    headings = "canvases", "mode", "ms a step", "copies", "waits", "held"
    cells = [
        (
            str(row["canvases"]),
            row["mode"],
            f"{row['milliseconds']:.2f}",
            *(f"{row[name]:g}" for name in headings[3:]),
        )
        for row in result["steps"]
    ]
    print_table(headings, cells, left=("mode",))


if __name__ == "__main__":
    main()
