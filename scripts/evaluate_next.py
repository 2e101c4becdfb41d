"""Measure a model on held-out prompts, without a constraint and with one.

    python scripts/evaluate_next.py --prompts 200 --model models/next

Sets: sentences made of trained patterns and of held-out ones, all with values that no training
sample holds; texts that also say what is not so; lists and nested objects; strings of random
letters; tool calls; words to choose; sentences in other people's manner. "exact" and "fields" (the
share of wanted values that are right) ignore a code fence around JSON; "valid" does not. Prints a
table; --json one object a line instead. `--only NAME` runs the sets whose name holds NAME.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from evaluate import is_valid, paired
from rich.console import Console
from rich.table import Table
from training.exams import exams
from training.samples import Sample

import dlm
from dlm.grammar import InvalidValueError, Spec


@dataclass(frozen=True, kw_only=True)
class Row:
    """One set in one setting; rates are shares of the prompts."""

    kind: str = ""  # of the prompts
    constrained: bool
    prompts: int
    valid: int  # the text is JSON that the schema accepts, a call of a tool, a word of the list
    truncated: list[int]  # numbers of the prompts whose answer max_tokens cut off
    exact: int  # the value is the wanted one, a code fence forgiven
    fields: float  # share of the wanted values that are where they belong
    calls: float  # denoiser calls a prompt
    tokens_per_call: float
    pins: float  # a prompt
    seconds: float  # a prompt, wall-clock


def main() -> None:
    args = arguments(__doc__, prompts=200, sets=True)
    engine = dlm.Engine.load(args.model, slots=args.slots)
    rows, notes = [], []
    for kind, samples in exams(args.prompts, args.seed).items():
        if args.only not in kind:
            continue
        outcomes = []
        for constrained in (False, True):
            row, exact = measure(engine, samples, constrained, args, kind)
            rows.append(row)
            outcomes.append(exact)
            if args.json:
                print(json.dumps(asdict(row)), flush=True)
            if row.truncated:
                how = "constrained" if constrained else "free"
                notes.append(f"{kind}, {how}: cut off at {args.max_tokens} tokens {row.truncated}")
        notes.append(f"{kind}: {paired(*outcomes)}")
    if not args.json:
        Console(width=110).print(table(rows))
        print("\n".join(notes))


def arguments(what: str | None, prompts: int, sets: bool = False) -> argparse.Namespace:
    """Of a script whose docstring is `what`, with its usual number of prompts."""
    parser = argparse.ArgumentParser(description=(what or "").partition("\n")[0])
    parser.add_argument("--model", metavar="DIR", help="built in: tiny")
    parser.add_argument("--prompts", type=int, default=prompts)
    parser.add_argument("--seed", type=int, default=0, help="of the prompts and the generations")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    if sets:
        parser.add_argument("--only", metavar="NAME", default="", help="sets whose name holds it")
    return parser.parse_args()


def measure(
    engine: dlm.Engine,
    samples: list[Sample],
    constrained: bool,
    args: argparse.Namespace,
    kind: str = "",
) -> tuple[Row, list[bool]]:
    """Run all samples through the engine; also says which of them came out exact."""
    specs = [spec_of(item) for item in samples]
    requests = [
        dlm.Request(
            prompt=item.prompt,
            tools=item.tools,
            constraint=spec if constrained else None,
            max_tokens=args.max_tokens,
            seed=args.seed * 1_000_003 + i,
            thinking=item.thought is not None,
        )
        for i, (item, spec) in enumerate(zip(samples, specs, strict=True))
    ]
    started = time.perf_counter()
    with Console(stderr=True).status(f"{kind} {'constrained' if constrained else 'free'}"):
        results = engine.generate(requests)
    seconds = time.perf_counter() - started
    said = [
        meaning(result, item, spec, engine)
        for result, item, spec in zip(results, samples, specs, strict=True)
    ]
    exact = [same(value, wanted(item)) for (_, value), item in zip(said, samples, strict=True)]
    right = [found(value, wanted(item)) for (_, value), item in zip(said, samples, strict=True)]
    calls, tokens = (
        sum(getattr(r.stats, name) for r in results) for name in ("denoiser_calls", "tokens")
    )
    n = len(samples)
    row = Row(
        kind=kind,
        constrained=constrained,
        prompts=n,
        valid=sum(valid for valid, _ in said),
        truncated=[i for i, r in enumerate(results) if r.finish_reason == "length"],
        exact=sum(exact),
        fields=sum(hits for hits, _ in right) / sum(all_ for _, all_ in right),
        calls=calls / n,
        tokens_per_call=tokens / calls,
        pins=sum(r.stats.pins for r in results) / n,
        seconds=seconds / n,
    )
    return row, exact


def spec_of(item: Sample) -> Spec:
    """The constraint that fits a sample's task."""
    if item.task == "tool":
        return dlm.Tools(item.tools, choice="required", parallel=False)
    if item.task == "choice":
        return dlm.Choice((item.schema or {})["enum"])
    return dlm.JsonSchema(item.schema or True)


def wanted(item: Sample) -> Any:
    return {item.value[0]: item.value[1]} if item.task == "tool" else item.value


def meaning(result: dlm.Result, item: Sample, spec: Spec, engine: dlm.Engine) -> tuple[bool, Any]:
    """Whether an answer is valid as it stands, and its value, a code fence forgiven."""
    if isinstance(spec, dlm.Tools):
        try:
            call = spec.read(result.token_ids, engine.vocabulary).tool_calls[0]
        except InvalidValueError:
            return False, None
        return True, {call.name: call.arguments}
    if item.task == "choice":
        word = result.text.strip()
        return result.text in (item.schema or {})["enum"], word
    return is_valid(result.text, item.schema or True), value_of(result.text)


def value_of(text: str) -> Any:
    """The JSON value of an answer; None if it is no JSON even without its code fence."""
    bare = text.strip().removeprefix("```json").removesuffix("```")
    try:
        return json.loads(bare)
    except json.JSONDecodeError:
        return None


def same(value: Any, other: Any) -> bool:
    """Equal as JSON values: 19 is 19.0, and neither is true."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(same(value[k], other[k]) for k in value)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(same, value, other))
    return value == other


def found(value: Any, target: Any) -> tuple[int, int]:
    """How many of the target's leaves the value has at the same place, and how many there are."""
    places = list(leaves(target))
    return sum(same(at(value, path), leaf) for path, leaf in places), len(places)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Values that hold no others, and where they are."""
    if not isinstance(value, dict | list) or not value:
        yield path, value
        return
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield from leaves(part, (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    """What is at `path`; an object that equals nothing, if nothing is."""
    for key in path:
        try:
            value = value[key]
        except (IndexError, KeyError, TypeError):
            return object()
    return value


def table(rows: list[Row]) -> Table:
    shown = Table(
        "prompts", *"constraint valid cut exact fields calls tokens/call s/prompt".split()
    )
    for row in rows:
        shown.add_row(
            f"{row.kind} ({row.prompts})",
            "yes" if row.constrained else "no",
            f"{row.valid / row.prompts:.3f}",
            str(len(row.truncated)),
            f"{row.exact / row.prompts:.3f}",
            f"{row.fields:.3f}",
            f"{row.calls:.2f}",
            f"{row.tokens_per_call:.2f}",
            f"{row.seconds:.3f}",
        )
    return shown


if __name__ == "__main__":
    main()
