"""Measure a model on held-out prompts under every kind of constraint, all kinds in one batch.

    python scripts/evaluate_kinds.py --prompts 300

Extractions are constrained by their JSON schema or to any JSON object, tool calls by the tools'
parameters, words by choice, regex and grammar. "valid" is judged by `jsonschema`, by the parser of
tool calls and by the list of words. A code fence around JSON is not valid, but forgiven for
"exact".
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

from evaluate import arguments, meaning, paired, request_of, spec_of, wanted
from measure.report import ResultRow, print_rows
from training.extraction import extract
from training.lessons import choice, tool_call
from training.samples import Sample

import dlm
from dlm.cli.compare.judging import same
from dlm.grammar import Spec


@dataclass(kw_only=True)
class KindRow(ResultRow):
    """Figures of one kind, with or without its constraint."""

    COLUMNS: ClassVar = {
        "kind": "{0.kind}",
        "constraint": "{0.constraint}",
        "valid": "{0.valid}/{0.prompts}",
        "truncated": "{0.truncated}",
        "exact": "{0.exact}/{0.prompts}",
        "calls": "{0.calls:.2f}",
        "tokens/call": "{0.tokens_per_call:.2f}",
    }

    kind: str
    constrained: bool
    prompts: int
    valid: int
    truncated: int
    exact: int
    calls: float  # denoiser calls a prompt
    tokens_per_call: float

    @property
    def constraint(self) -> str:
        return "yes" if self.constrained else "no"


@dataclass(frozen=True)
class ConstrainedSample:
    """A sample, whose answer is known, and its constraint."""

    item: Sample
    spec: Spec

    def valid(self, result: dlm.Result, engine: dlm.Engine) -> bool:
        """Whether an answer ended by itself and is valid for its kind."""
        valid, _ = meaning(result, self.item, self.spec, engine.vocabulary)
        return valid and result.finish_reason == "stop"

    def exact(self, result: dlm.Result, engine: dlm.Engine) -> bool:
        _, value = meaning(result, self.item, self.spec, engine.vocabulary)
        return same(value, wanted(self.item))


def main() -> None:
    args = arguments(__doc__, prompts=300)
    engine = dlm.Engine.load(args.model, slots=args.slots, kv=args.kv)
    random = Random(f"kinds/{args.seed}")
    kinds = list(MAKERS)
    tasks = [MAKERS[kinds[i % len(kinds)]](random) for i in range(args.prompts)]
    rows: list[KindRow] = []
    outcomes: list[list[bool]] = []
    for constrained in (False, True):
        requests = [
            request_of(task.item, task.spec if constrained else None, i, args)
            for i, task in enumerate(tasks)
        ]
        results = engine.generate(requests)
        outcomes.append([t.exact(r, engine) for t, r in zip(tasks, results, strict=True)])
        for kind in [*kinds, "all"]:
            part = [i for i in range(len(tasks)) if kind in ("all", kinds[i % len(kinds)])]
            rows.append(row_of(kind, constrained, part, tasks, results, outcomes[-1], engine))
    print_rows(rows, args.json)
    if not args.json:
        print(paired(*outcomes))


def by_object(random: Random) -> ConstrainedSample:
    item = extract(random, "heldout")
    return ConstrainedSample(replace(item, schema={"type": "object"}), dlm.JsonObject())


def fitting(item: Sample) -> ConstrainedSample:
    """Return a sample under the constraint that fits its task."""
    return ConstrainedSample(item, spec_of(item))


def by_regex(random: Random) -> ConstrainedSample:
    item = choice(random, "heldout")
    return ConstrainedSample(item, dlm.Regex("|".join((item.schema or {})["enum"])))


def by_grammar(random: Random) -> ConstrainedSample:
    item = choice(random, "heldout")
    words = " | ".join(json.dumps(word) for word in (item.schema or {})["enum"])
    return ConstrainedSample(item, dlm.Grammar(f"start: {words}", "lark"))


MAKERS: dict[str, Callable[[Random], ConstrainedSample]] = {
    "JSON schema": lambda random: fitting(extract(random, "heldout")),
    "tools": lambda random: fitting(tool_call(random, "heldout")),
    "choice": lambda random: fitting(choice(random, "heldout")),
    "JSON object": by_object,
    "regex": by_regex,
    "grammar": by_grammar,
}


def row_of(
    kind: str,
    constrained: bool,
    part: list[int],
    tasks: list[ConstrainedSample],
    results: list[dlm.Result],
    exact: list[bool],
    engine: dlm.Engine,
) -> KindRow:
    """Return the row of the tasks with the numbers in `part`."""
    calls, tokens = (
        sum(getattr(results[i].stats, name) for i in part) for name in ("denoiser_calls", "tokens")
    )
    return KindRow(
        kind=kind,
        constrained=constrained,
        prompts=len(part),
        valid=sum(tasks[i].valid(results[i], engine) for i in part),
        truncated=sum(results[i].finish_reason == "length" for i in part),
        exact=sum(exact[i] for i in part),
        calls=calls / max(1, len(part)),
        tokens_per_call=tokens / max(1, calls),
    )


if __name__ == "__main__":
    main()
