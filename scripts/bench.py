"""Time what a grammar costs, at a real vocabulary and on canvases of 256.

    python scripts/bench.py --schemas FILE.jsonl[.xz] --tokenizer tokenizer.json[.xz]

`compile` is the processor time from a schema to a grammar whose first mask is there, over all
schemas of the file and those that are known to be hard. Then a schema's own instances, as the items
of an array, fill a canvas, with dense logits on the CPU, one thread: the `first` step of a grammar
that nobody has used but its `warmup`, the canvas agreeing with it; `warm`, the same for a later
request; `agree`, a step whose argmax is the last one's; `repair`, a step that wants a forbidden
token somewhere, elsewhere each time; and each `mask` along the canvas, made anew. At the end,
`throughput`: what `scripts/throughput.py` measures. `--host` measures something else, and needs no
files: milliseconds of the host in a pass over canvases of which nothing settles, where the model
and its vocabulary pass take no time.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from sys import maxsize
from typing import Any

import numpy as np
import torch
from host_time import host_milliseconds
from rich.console import Console
from rich.table import Table
from stress import STOPS, L, read_schemas, vocabulary_of
from throughput import array_of, throughput

from dlm.collector import tune_garbage_collector
from dlm.grammar import Compiled, Compiler, Frontier, GrammarError, JsonSchema, Matcher
from dlm.grammar.canvas.warmup import Warmup
from dlm.kernels.vocab import vocab_pass
from dlm.logits.canvas_logits import CANDIDATES, THRESHOLD, CanvasLogits, DeviceCopies

HOST_SLOTS = 1, 4, 16
_BUDGET = 4096  # tokens
_REPEATS = 8  # steps of a kind for each schema
_UNIT = r"^([a-z0-9-]+):([a-z0-9\.-]+):([a-z0-9-]+)?:([a-z0-9-]+)$"
_URL = r"^https?://[\w.-]+(:[0-9]+)?(/[\w./%~-]*)?(\?[\w=&%.-]*)?(#[\w-]*)?$"
HARD: dict[str, Any] = {
    "a class of characters": {"type": "string", "pattern": r"^[\w\/\.:-]+$"},
    "parts and 146 characters": {"type": "string", "pattern": _UNIT, "maxLength": 146},
    "parts and 255 characters": {"type": "string", "pattern": _UNIT, "maxLength": 255},
    "50 to 32,767 characters": {"type": "string", "minLength": 50, "maxLength": 32_767},
    "an address of 254": {"type": "string", "pattern": r"^\S+@\S+$", "maxLength": 254},
    "an URL of 2,048": {"type": "string", "pattern": _URL, "maxLength": 2048},
    "200 properties, open": {
        "type": "object",
        "properties": {f"key_{i}": {"type": "string"} for i in range(200)},
        "additionalProperties": True,
    },
    "500 properties": {
        "type": "object",
        "properties": {f"key_{i}": {"type": "integer"} for i in range(500)},
        "additionalProperties": False,
    },
    "9,000 words": {"enum": [f"word {i * 7919 % 104_729}" for i in range(9000)]},
    "10,000 integers": {"enum": [i * 7919 for i in range(10_000)]},
}

Times = dict[str, list[float]]  # milliseconds, by what was timed


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--schemas", metavar="FILE")
    parser.add_argument("--tokenizer", metavar="FILE")
    parser.add_argument("--host", action="store_true", help="what the host takes of a pass, alone")
    parser.add_argument("--limit", type=int, metavar="N", help="schemas at most; default: all")
    parser.add_argument("--steps", type=int, default=60, metavar="N", help="schemas whose steps")
    parser.add_argument("--slots", type=int, default=16, metavar="N", help="of `throughput`; 16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.host:
        found = {f"host, {n} slots": {"p50": round(host_milliseconds(n), 3)} for n in HOST_SLOTS}
        print(json.dumps(found) if args.json else found)
        return
    if not (args.schemas and args.tokenizer):
        parser.error("it takes --schemas and --tokenizer, or --host")
    times = measure(args)
    rates = throughput(Path(args.schemas), Path(args.tokenizer), args.slots, args.seed)
    if args.json:
        found = {name: summary(each) for name, each in times.items()}
        print(json.dumps(found | {"throughput": rates}))
    else:
        show(times)
        print(", ".join(f"{name} {number:.3g}" for name, number in rates.items()))


def summary(each: list[float]) -> dict[str, float]:
    p50, p99 = np.percentile(each, [50, 99])
    return {"p50": round(p50, 4), "p99": round(p99, 4), "max": round(max(each), 4)}


def measure(args: argparse.Namespace) -> Times:
    vocabulary = vocabulary_of(Path(args.tokenizer))
    compiler = Compiler(vocabulary)
    start(compiler, JsonSchema({"type": "string"}))  # what all grammars share
    tune_garbage_collector()  # as a server would
    entries = read_schemas(Path(args.schemas))
    random.Random(args.seed).shuffle(entries)
    names = ("compile", "mask", "warmup", "first", "warm", "agree", "repair")
    times: Times = {name: [] for name in names}
    for schema in [*(entry["schema"] for entry in entries[: args.limit]), *HARD.values()]:
        begun = time.process_time()
        try:
            start(compiler, JsonSchema(schema))
        except GrammarError:
            continue
        times["compile"].append(1000 * (time.process_time() - begun))
    logits = torch.randn(L, len(vocabulary), generator=torch.Generator().manual_seed(args.seed))
    for entry in entries:
        if len(times["first"]) >= args.steps:
            break
        example = array_of(entry)
        if example is None:
            continue
        spec, text = example
        canvas = vocabulary.encode(text)[:L]
        try:
            if accepted(Compiler(vocabulary).compile(spec), canvas):
                steps(times, compiler.compile(spec), canvas, logits, random.Random(args.seed))
        except GrammarError:
            continue
    return times


def start(compiler: Compiler, spec: JsonSchema) -> None:
    """Compile, and look at the first mask."""
    Matcher(compiler.compile(spec)).allowed()


def accepted(compiled: Compiled, tokens: list[int]) -> bool:
    return len(tokens) == L and Matcher(compiled).accept_all(tokens) == L


def steps(
    times: Times,
    compiled: Compiled,
    canvas: list[int],
    logits: torch.Tensor,
    rng: random.Random,
) -> None:
    """Time all situations for one schema; `canvas` is what the model would rather say."""
    plain = logits[range(L), canvas].clone()
    logits[range(L), canvas] = 30.0
    found = vocab_pass(logits, torch.ones(L), torch.zeros(L), threshold=THRESHOLD, k=CANDIDATES)
    scores = CanvasLogits(found, logits, 1.0, None, DeviceCopies(logits.device))
    clock(times, "warmup", lambda: Warmup(compiled).go_on(maxsize))
    for situation in ("first", "warm"):
        constraint = Frontier(compiled, _BUDGET)
        clock(times, situation, lambda: constraint.guide(scores))  # noqa: B023
    for _ in range(_REPEATS):
        clock(times, "agree", lambda: constraint.guide(scores))
    for _ in range(_REPEATS):
        wrong = CanvasLogits(found, logits, 1.0, None, DeviceCopies(logits.device))
        wrong.argmax[rng.randrange(L)] = STOPS[0]  # nothing can end before the array does
        clock(times, "repair", lambda: constraint.guide(wrong))  # noqa: B023
    logits[range(L), canvas] = plain
    matcher = Matcher(compiled)
    compiled.masks.clear()
    for token in canvas:
        if matcher.state not in compiled.masks.known:
            clock(times, "mask", matcher.mask)
        matcher.accept(token)


def clock(times: Times, name: str, work: Callable[[], Any]) -> Any:
    started = time.perf_counter()
    result = work()
    times[name].append(1000 * (time.perf_counter() - started))
    return result


def show(times: Times) -> None:
    table = Table(*"work runs p50/ms p99/ms max/ms".split())
    for name, each in times.items():
        found = summary(each)
        table.add_row(name, str(len(each)), *(f"{found[k]:.3f}" for k in ("p50", "p99", "max")))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
