"""Time what a grammar costs, at a real vocabulary and on canvases of 256.

    python scripts/bench.py --schemas FILE.jsonl[.xz] --tokenizer tokenizer.json[.xz]

`compile` is the processor time from a schema to the first mask of its grammar, over all schemas of
the file and some that are known to be hard. For the other figures, a canvas is filled with an array
of a schema's own instances, with dense logits on the CPU, on one thread:

- `warmup`, of a new grammar, and `first`, its first step after that;
- `warm`, the first step of a later request;
- `agree`, a step whose argmax is that of the last step;
- `repair`, a step with one forbidden token, at another position each time;
- `mask`, each new mask along the canvas.

`throughput` are the figures of `scripts/throughput.py`. `--host` measures something else and needs
no files: the host's milliseconds of a pass over canvases that never settle. What a GPU would
compute takes no time there: the model, its vocabulary pass, and its expected embeddings.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from sys import maxsize
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from measure.options import MeasureParser
from measure.report import percentiles, print_table
from measure.schemas import GEMMA, STOPS, L, array_of, read_schemas, vocabulary_of
from measure.weightless import TokenChat, Weightless, fill_
from throughput import throughput
from torch import Tensor

import dlm
from dlm.chat import Chat
from dlm.engine import BUILT_IN
from dlm.events import Finished
from dlm.grammar import Compiled, Compiler, Frontier, GrammarError, JsonSchema, Matcher
from dlm.grammar.canvas import Warmup
from dlm.kernels.vocab import vocab_pass
from dlm.kernels.vocab_rows import VocabPass
from dlm.loading import tune_garbage_collector
from dlm.logits.canvas_logits import CANDIDATES, THRESHOLD, CanvasLogits, DeviceCopies

HOST_SLOTS = 1, 4, 16
_HOST_STEPS, _HOST_WARM = 60, 10
_LISTED = 32  # candidates of a row that is not sure of its token
_TOKEN = 100_000  # an ordinary token
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


def main() -> None:
    parser = MeasureParser(__doc__, "schemas", "tokenizer", "limit", "seed", "json")
    purpose = "Measure the host's time of a pass instead."
    parser.add_argument("--host", action="store_true", help=purpose)
    parser.add_count("--steps", 60, "The number of schemas whose steps are timed.")
    parser.add_count("--slots", 16, "The slots of `throughput`.")
    args = parser.parsed()
    torch.set_num_threads(1)
    if args.host:
        found = {f"host, {n} slots": {"p50": round(host_milliseconds(n), 3)} for n in HOST_SLOTS}
        print(json.dumps(found) if args.json else found)
        return
    if not (args.schemas and args.tokenizer):
        parser.error("it takes --schemas and --tokenizer, or --host")
    times = measure(args)
    rates = throughput(args.schemas, args.tokenizer, args.slots, args.seed)
    if args.json:
        found = {name: percentiles(each) for name, each in times.items()}
        print(json.dumps(found | {"throughput": rates}))
    else:
        show(times)
        print(", ".join(f"{name} {number:.3g}" for name, number in rates.items()))


def measure(args: argparse.Namespace) -> Times:
    vocabulary = vocabulary_of(args.tokenizer)
    compiler = Compiler(vocabulary)
    start(compiler, JsonSchema({"type": "string"}))  # makes what all grammars share
    tune_garbage_collector()  # as a server would
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
    for name, each in times.items():
        found = percentiles(each)
        rows.append([name, str(len(each)), *(f"{value:.3f}" for value in found.values())])
    print_table("work runs p50/ms p99/ms max/ms".split(), rows)


class Instant(Weightless):
    """A denoiser that returns the same logits for every canvas at once, so that none settles."""

    def __init__(self) -> None:
        super().__init__(GEMMA, L)
        self._logits = torch.zeros(1).expand(GEMMA)

    def denoise(
        self, canvas: Tensor, soft_embedding: Any, cache: Any, slots: Sequence[int], encode: Any
    ) -> Tensor:
        self.encode(list(encode.values()), cache, list(encode))
        return self._logits.expand(len(slots), L, GEMMA)


def half_sure(rows: int) -> VocabPass:
    """Return the result of a vocabulary pass in which every other row is sure of its token."""
    made = VocabPass.certain(torch.full((rows,), _TOKEN), CANDIDATES)
    made.above[::2], made.entropy[::2] = _LISTED, 1.0
    made.ids[::2, :_LISTED] = torch.arange(_LISTED, dtype=torch.int32)
    made.logits[::2, :_LISTED] = 1.0
    made.lse[::2] = 1.0 + torch.tensor(float(_LISTED)).log()
    return made


def host_milliseconds(slots: int) -> float:
    """Return the median time of a pass over `slots` canvases without constraints."""
    packed = half_sure(slots * L).packed()
    tokenizer = Chat.load(BUILT_IN).tokenizer
    fill_(tokenizer, GEMMA)
    engine = dlm.Engine(Instant(), TokenChat(tokenizer), slots=slots)
    for i in range(slots):
        engine.add(dlm.Request(token_ids=[1], max_tokens=4096, seed=i))
    taken = []
    made = SimpleNamespace(packed=lambda: packed)
    with patch("dlm.logits.distributions.vocab_pass", lambda *_, **__: made):
        for _ in range(_HOST_WARM + _HOST_STEPS):
            begun = time.perf_counter()
            events = engine.step()
            taken.append(1e3 * (time.perf_counter() - begun))
            if any(isinstance(event, Finished) for event in events):
                raise RuntimeError("an answer ended, so that a pass had fewer canvases than slots")
    engine.close()
    return statistics.median(taken[_HOST_WARM:])


if __name__ == "__main__":
    main()
