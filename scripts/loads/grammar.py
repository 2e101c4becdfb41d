"""Time what a grammar costs, at a real vocabulary and on canvases of 256.

    python scripts/load.py grammar --schemas FILE.jsonl[.xz] --tokenizer tokenizer.json[.xz]

`compile` is the processor time from a schema to the first mask of its grammar, over all schemas of
the file and some that are known to be hard. For the other figures, a canvas is filled with an array
of a schema's own instances, with dense logits on the CPU, on one thread:

- `warmup`, of a new grammar, and `first`, its first step after that;
- `warm`, the first step of a later request;
- `agree`, a step whose argmax is that of the last step;
- `repair`, a step with one forbidden token, at another position each time;
- `mask`, each new mask along the canvas.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from sys import maxsize
from typing import Any

import torch
from measure.options import MeasureParser
from measure.report import percentiles, print_table
from measure.schemas import STOPS, L, array_of, read_schemas, vocabulary_of

from dlm.grammar import Compiled, Compiler, Frontier, GrammarError, JsonSchema, Matcher
from dlm.grammar.canvas import Warmup
from dlm.kernels.vocab import vocab_pass
from dlm.loading import tune_process
from dlm.logits.canvas_logits import CANDIDATES, THRESHOLD, CanvasLogits, DeviceCopies, HostRows

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

Times = dict[str, list[float]]  # milliseconds, by the name of what was timed


def main(command: str) -> None:
    files = "schemas", "tokenizer"
    parser = MeasureParser(__doc__, *files, "limit", "seed", "json", required=files)
    parser.add_count("--steps", 60, "The number of schemas whose steps are timed.")
    args = parser.parsed()
    torch.set_num_threads(1)
    times = measure(args)
    if args.json:
        print(json.dumps({name: percentiles(some) for name, some in times.items()}))
    else:
        show(times)


def measure(args: argparse.Namespace) -> Times:
    vocabulary = vocabulary_of(args.tokenizer)
    compiler = Compiler(vocabulary)
    start(compiler, JsonSchema({"type": "string"}))  # makes what all grammars share
    tune_process()  # as a server would
    entries = read_schemas(args.schemas)
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
    """Compile a grammar and make its first mask."""
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
    """Time all situations for one schema; the argmax of `logits` is set to `canvas`."""
    plain = logits[range(L), canvas].clone()
    logits[range(L), canvas] = 30.0
    result = vocab_pass(logits, torch.ones(L), torch.zeros(L), threshold=THRESHOLD, k=CANDIDATES)
    rows = HostRows.of(result, logits.shape[1])
    scores = CanvasLogits(rows, logits, 1.0, None, DeviceCopies(logits.device))
    clock(times, "warmup", lambda: Warmup(compiled).go_on(maxsize))
    for situation in ("first", "warm"):
        constraint = Frontier(compiled, _BUDGET)
        clock(times, situation, lambda: constraint.guide(scores))  # noqa: B023
    for _ in range(_REPEATS):
        clock(times, "agree", lambda: constraint.guide(scores))
    for _ in range(_REPEATS):
        rows = HostRows.of(result, logits.shape[1])
        wrong = CanvasLogits(rows, logits, 1.0, None, DeviceCopies(logits.device))
        wrong.argmax[rng.randrange(L)] = STOPS[0]  # forbidden before the array's end
        clock(times, "repair", lambda: constraint.guide(wrong))  # noqa: B023
    logits[range(L), canvas] = plain
    matcher = Matcher(compiled)
    compiled.masks.clear()
    for token in canvas:
        if matcher.state not in compiled.masks.known:
            clock(times, "mask", matcher.mask)
        matcher.accept(token)


def clock(times: Times, name: str, work: Callable[[], Any]) -> None:
    started = time.perf_counter()
    work()
    times[name].append(1000 * (time.perf_counter() - started))


def show(times: Times) -> None:
    rows = []
    for name, some in times.items():
        rows.append([name, str(len(some)), *(f"{p:.3f}" for p in percentiles(some).values())])
    print_table("work runs p50/ms p99/ms max/ms".split(), rows)
