"""Time what a grammar costs a denoising step, at a real vocabulary and on canvases of 256.

    python scripts/bench.py --schemas FILE.jsonl[.xz] --tokenizer tokenizer.json[.xz]

Each schema's own valid instances, as the items of an array, fill a canvas. Four situations, with
dense logits on the CPU, one thread: the `first` step of a grammar that has just been compiled, the
canvas agreeing with it; `warm`, the same for a later request; `agree`, a step whose argmax is the
last one's; `repair`, a step that wants a forbidden token somewhere, elsewhere each time. The
yardstick is xgrammar compiling the same schema by itself, filling a mask for and accepting the
same tokens, from left to right.
"""

import argparse
import gc
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xgrammar as xgr
from rich.console import Console
from rich.table import Table
from stress import STOPS, L, read_schemas, vocabulary_of

from dlm.grammar import Compiled, Compiler, Frontier, GrammarError, JsonSchema
from dlm.logits import Logits

_BUDGET = 4096  # tokens
_REPEATS = 8  # steps of a kind for each schema


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--schemas", required=True, metavar="FILE")
    parser.add_argument("--tokenizer", required=True, metavar="FILE")
    parser.add_argument("--limit", type=int, default=60, metavar="N", help="schemas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    times = measure(args)
    if args.json:
        print(json.dumps(times))
    else:
        show(times)


def measure(args: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds, by what was timed."""
    vocabulary = vocabulary_of(Path(args.tokenizer))
    compiler = Compiler(vocabulary, rehearsed=True)
    compiler.compile(JsonSchema({"type": "null"}))  # xgrammar reads the vocabulary
    alone = xgr.GrammarCompiler(vocabulary.info(), cache_enabled=False)
    gc.collect()
    gc.freeze()  # as a server would: to look through all that is imported takes 0.2 s
    rng = torch.Generator().manual_seed(args.seed)
    logits = torch.randn(L, len(vocabulary), generator=rng)
    times: dict[str, list[float]] = {}
    entries = read_schemas(Path(args.schemas))
    random.Random(args.seed).shuffle(entries)
    for entry in entries:
        if len(times.get("first", [])) == args.limit:
            break
        example = array_of(entry)
        if example is None:
            continue
        spec, text = example
        try:
            compiled = clock(times, "compile", lambda: compiler.compile(spec))  # noqa: B023
            plain = clock(times, "xgrammar: compile", lambda: alone.compile_grammar(own(spec)))  # noqa: B023
        except (GrammarError, RuntimeError):
            continue
        canvas = vocabulary.encode(text)[:L]
        if len(canvas) == L and accepted(compiled.grammar, canvas) and accepted(plain, canvas):
            steps(times, compiled, canvas, logits, random.Random(args.seed))
            clock(times, "xgrammar: fill and accept", lambda: fill_and_accept(plain, canvas))  # noqa: B023
    return times


def own(spec: JsonSchema) -> xgr.Grammar:
    """What xgrammar makes of the schema by itself."""
    return xgr.Grammar.from_json_schema(
        json.dumps(spec.parsed), any_whitespace=True, max_whitespace_cnt=spec.max_whitespace
    )


def array_of(entry: dict[str, Any]) -> tuple[JsonSchema, str] | None:
    """An array of a schema's first valid instance, longer than a canvas, and its own schema."""
    schema = entry["schema"]
    valid = [test["data"] for test in entry["tests"] if test["valid"]]
    if not valid or not isinstance(schema, dict) or "$ref" in json.dumps(schema):
        return None  # a reference would lead elsewhere within another schema
    item = json.dumps(valid[0], ensure_ascii=False)
    count = 16 * L // len(item) + 2
    try:
        return JsonSchema({"type": "array", "items": schema}), f"[{', '.join([item] * count)}]"
    except GrammarError:
        return None


def accepted(compiled: xgr.CompiledGrammar, tokens: list[int]) -> bool:
    matcher = xgr.GrammarMatcher(compiled, override_stop_tokens=list(STOPS))
    return all(matcher.accept_token(token) for token in tokens)


def steps(
    times: dict[str, list[float]],
    compiled: Compiled,
    canvas: list[int],
    logits: torch.Tensor,
    rng: random.Random,
) -> None:
    """Time all situations for one schema; `canvas` is what the model would rather say."""
    plain = logits[range(L), canvas].clone()
    logits[range(L), canvas] = 30.0
    scores = Logits(logits, canvas)
    for situation in ("first", "warm"):
        constraint = Frontier(compiled, _BUDGET)
        clock(times, situation, lambda: constraint.guide(scores))  # noqa: B023
    for _ in range(_REPEATS):
        clock(times, "agree", lambda: constraint.guide(scores))
    for _ in range(_REPEATS):
        wrong = list(canvas)
        wrong[rng.randrange(L)] = STOPS[0]  # nothing can end before the array does
        clock(times, "repair", lambda: constraint.guide(Logits(logits, wrong)))  # noqa: B023
    logits[range(L), canvas] = plain


def fill_and_accept(compiled: xgr.CompiledGrammar, tokens: list[int]) -> None:
    matcher = xgr.GrammarMatcher(compiled, override_stop_tokens=list(STOPS))
    row = xgr.allocate_token_bitmask(1, compiled.tokenizer_info.vocab_size)
    for token in tokens:
        matcher.fill_next_token_bitmask(row)
        matcher.accept_token(token)


def clock(times: dict[str, list[float]], name: str, work: Callable[[], Any]) -> Any:
    started = time.perf_counter()
    result = work()
    times.setdefault(name, []).append(1000 * (time.perf_counter() - started))
    return result


def show(times: dict[str, list[float]]) -> None:
    table = Table(*"work runs p50/ms p99/ms p50/xgrammar".split())
    yardstick = {
        name: np.median(times[f"xgrammar: {'compile' if name == 'compile' else 'fill and accept'}"])
        for name in times
    }
    for name, each in times.items():
        p50, p99 = np.percentile(each, [50, 99])
        ratio = p50 / yardstick[name] if "xgrammar" not in name else 1.0
        table.add_row(name, str(len(each)), f"{p50:.3f}", f"{p99:.3f}", f"{ratio:.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
