"""Measure a model on held-out extraction prompts, without a constraint and with one.

    python scripts/evaluate.py --prompts 200

Every prompt has its own schema. "exact" ignores a code fence around the JSON; "valid" does not.
Prints a table; --json one object a line instead.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from jsonschema import validators
from rich.console import Console
from rich.table import Table
from scipy import stats
from tiny_data import Sample, extract

import dlm


@dataclass(frozen=True, kw_only=True)
class Row:
    """One setting over all prompts; rates are shares of the prompts."""

    constrained: bool
    prompts: int
    valid: int  # the text is JSON that the schema accepts
    truncated: list[int]  # numbers of the prompts whose answer max_tokens cut off
    exact: int  # the value is the wanted one, a code fence forgiven
    calls: float  # denoiser calls a prompt
    tokens_per_call: float
    pins: float  # a prompt
    seconds: float  # a prompt, wall-clock


def main() -> None:
    args = arguments(__doc__, prompts=200)
    engine = dlm.Engine.load(args.model, slots=args.slots, kv=args.kv)
    random = Random(f"evaluate/{args.seed}")
    samples = [extract(random, "heldout") for _ in range(args.prompts)]
    rows, outcomes = [], []
    for constrained in (False, True):
        row, exact = measure(engine, samples, constrained, args)
        rows.append(row)
        outcomes.append(exact)
    if args.json:
        for row in rows:
            print(json.dumps(asdict(row)))
    else:
        Console(width=100).print(table(rows))
        for row in rows:
            if row.truncated:
                kind = "constrained" if row.constrained else "free"
                print(f"cut off at {args.max_tokens} tokens, {kind}: prompts {row.truncated}")
        print(paired(*outcomes))


def arguments(what: str | None, prompts: int) -> argparse.Namespace:
    """Of a script whose docstring is `what`, with its usual number of prompts."""
    parser = argparse.ArgumentParser(description=(what or "").partition("\n")[0])
    parser.add_argument("--model", metavar="DIR", help="built in: tiny")
    parser.add_argument("--prompts", type=int, default=prompts)
    parser.add_argument("--seed", type=int, default=0, help="of the prompts and the generations")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--kv", default="auto", help="keys and values: fp8, bf16, fp16 or fp32")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measure(
    engine: dlm.Engine, samples: list[Sample], constrained: bool, args: argparse.Namespace
) -> tuple[Row, list[bool]]:
    """Run all samples through the engine; also says which of them came out exact."""
    requests = [
        dlm.Request(
            prompt=item.prompt,
            constraint=dlm.JsonSchema(item.schema or True) if constrained else None,
            max_tokens=args.max_tokens,
            seed=args.seed * 1_000_003 + i,
            thinking=item.thought is not None,
        )
        for i, item in enumerate(samples)
    ]
    started = time.perf_counter()
    with Console(stderr=True).status("constrained" if constrained else "free"):
        results = engine.generate(requests)
    seconds = time.perf_counter() - started
    exact = [is_exact(r.text, item) for r, item in zip(results, samples, strict=True)]
    calls, tokens = (
        sum(getattr(r.stats, name) for r in results) for name in ("denoiser_calls", "tokens")
    )
    n = len(samples)
    row = Row(
        constrained=constrained,
        prompts=n,
        valid=sum(
            is_valid(r.text, item.schema or True) for r, item in zip(results, samples, strict=True)
        ),
        truncated=[i for i, r in enumerate(results) if r.finish_reason == "length"],
        exact=sum(exact),
        calls=calls / n,
        tokens_per_call=tokens / calls,
        pins=sum(r.stats.pins for r in results) / n,
        seconds=seconds / n,
    )
    return row, exact


def is_valid(text: str, schema: Any) -> bool:
    """`text` is JSON that `jsonschema` accepts."""
    try:
        return validator_of(schema)(schema).is_valid(json.loads(text))
    except (ValueError, RecursionError):
        return False


def validator_of(schema: Any) -> Any:
    """Of the draft that the schema names, or of 2020-12."""
    return validators.validator_for(schema, default=validators.Draft202012Validator)


def is_exact(text: str, item: Sample) -> bool:
    """Compared as JSON values, so that 1 is not true; the order of keys does not matter."""
    bare = text.strip().removeprefix("```json").removesuffix("```")
    try:
        value: Any = json.loads(bare)
    except json.JSONDecodeError:
        return False
    return json.dumps(value, sort_keys=True) == json.dumps(item.value, sort_keys=True)


def table(rows: list[Row]) -> Table:
    shown = Table(*("constraint valid truncated exact calls tokens/call pins s/prompt".split()))
    for row in rows:
        shown.add_row(
            "yes" if row.constrained else "no",
            f"{row.valid}/{row.prompts}",
            str(len(row.truncated)),
            f"{row.exact / row.prompts:.3f}",
            f"{row.calls:.2f}",
            f"{row.tokens_per_call:.2f}",
            f"{row.pins:.2f}",
            f"{row.seconds:.3f}",
        )
    return shown


def paired(free: list[bool], bound: list[bool]) -> str:
    """Prompts that only one of the two got right, and how likely so uneven a split is by chance."""
    lost = sum(f and not b for f, b in zip(free, bound, strict=True))
    won = sum(b and not f for f, b in zip(free, bound, strict=True))
    chance = stats.binomtest(won, lost + won).pvalue if lost + won else 1.0
    return f"exact only free {lost}, only constrained {won} (two-sided sign test: p = {chance:.2g})"


if __name__ == "__main__":
    main()
