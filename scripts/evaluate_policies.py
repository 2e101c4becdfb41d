"""Measure the exact posterior against the frontier on grammars that are small enough for both.

    python scripts/evaluate_policies.py --prompts 60

Held-out words by choice, regex and JSON enum, and extractions that do not think by their schemas;
those whose token automaton is too large are left out of all rows, and counted. "mass" is the median
of exp(log Z) of an answer's first pass: the model's probability of all that is allowed.
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

from evaluate import arguments
from evaluate_kinds import Task, by_choice, by_regex
from rich.console import Console
from rich.table import Table
from training.extraction import extract
from training.lessons import choice

import dlm
from dlm.grammar import GrammarError, token_automaton

POLICIES: dict[str, dict[str, Any]] = {
    "frontier": {},
    "exact": {"policy": "exact"},
    "exact, refused": {"policy": "exact", "suspect": "refused"},
    "exact, mass": {"policy": "exact", "suspect": "mass"},
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kind under one policy."""

    policy: str
    kind: str
    prompts: int
    too_large: int  # further prompts, whose automaton is
    valid: int
    exact: int
    calls: float  # denoiser calls a prompt
    guide_ms: float  # of the host's time a pass, for a constraint and what runs beside it
    mass: float | None


def main() -> None:
    args = arguments(__doc__, prompts=60)
    base = dlm.Engine.load(args.model, slots=args.slots, kv=args.kv)
    random = Random(f"policies/{args.seed}")
    tasks = [MAKERS[kind](random) for kind in kinds_of(args.prompts)]
    small = [is_small(base, task) for task in tasks]
    rows = []
    for policy, options in POLICIES.items():
        config = replace(base.config, **options)
        engine = dlm.Engine(base.model, base.chat, config, args.slots)
        rows += measure(engine, policy, tasks, small, args)
        engine.close()
    base.close()
    if args.json:
        for row in rows:
            print(json.dumps(asdict(row)))
    else:
        Console(width=100).print(table(rows))


def kinds_of(prompts: int) -> list[str]:
    """Of each prompt."""
    return [list(MAKERS)[i % len(MAKERS)] for i in range(prompts)]


def is_small(engine: dlm.Engine, task: Task) -> bool:
    try:
        token_automaton(engine.compile(task.spec).result())
    except GrammarError:
        return False
    return True


def measure(
    engine: dlm.Engine,
    policy: str,
    tasks: list[Task],
    small: list[bool],
    args: argparse.Namespace,
) -> Iterator[Row]:
    """All small tasks in one batch, told kind by kind, and all together."""
    kinds, requests = kinds_of(len(tasks)), {}
    for i, task in enumerate(tasks):
        if small[i]:
            seed = args.seed * 1_000_003 + i
            requests[i] = dlm.Request(
                prompt=task.item.prompt,
                constraint=task.spec,
                max_tokens=args.max_tokens,
                seed=seed,
            )
    results = dict(zip(requests, engine.generate([*requests.values()]), strict=True))
    for kind in [*MAKERS, "all"]:
        part = [i for i in range(len(tasks)) if kind in ("all", kinds[i])]
        done = [i for i in part if small[i]]
        stats = [results[i].stats for i in done]
        calls = sum(each.denoiser_calls for each in stats)
        masses = [math.exp(each.log_z[0]) for each in stats if each.log_z]
        yield Row(
            policy=policy,
            kind=kind,
            prompts=len(done),
            too_large=len(part) - len(done),
            valid=sum(tasks[i].valid(results[i], engine) for i in done),
            exact=sum(tasks[i].exact(results[i], engine) for i in done),
            calls=calls / max(1, len(done)),
            guide_ms=1e3 * sum(each.seconds["guide"] for each in stats) / max(1, calls),
            mass=statistics.median(masses) if masses else None,
        )


def by_enum(random: Random) -> Task:
    item = choice(random, "heldout")
    spec = dlm.JsonSchema(item.schema or {})
    return Task(replace(item, task="extract"), spec)


def by_schema(random: Random) -> Task:
    item = extract(random, "heldout")
    while item.thought is not None:
        item = extract(random, "heldout")
    return Task(item, dlm.JsonSchema(item.schema or True))


MAKERS = {"choice": by_choice, "regex": by_regex, "enum": by_enum, "schema": by_schema}


def table(rows: list[Row]) -> Table:
    shown = Table(*("policy", "kind", "too large", "valid", "exact", "calls", "guide ms", "mass"))
    for row in rows:
        shown.add_row(
            row.policy,
            row.kind,
            str(row.too_large),
            f"{row.valid}/{row.prompts}",
            f"{row.exact}/{row.prompts}",
            f"{row.calls:.2f}",
            f"{row.guide_ms:.1f}",
            "" if row.mass is None else f"{row.mass:.3f}",
        )
    return shown


if __name__ == "__main__":
    main()
