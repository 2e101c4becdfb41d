"""Measure a model on held-out prompts, without a constraint and with one.

    python scripts/evaluate.py --prompts 200

Sets: sentences made of trained patterns and of held-out ones, all with values that no training
sample holds; texts that also say what is not so; lists and nested objects; strings of random
letters; tool calls; words to choose; sentences in other people's manner. Each is answered on
canvases and left to right, drafted by them, unless `--decoding` says how. "exact" and "fields" (the
share of wanted values that are right) ignore a code fence around JSON; "valid" does not. Prints a
table; --json one object a line instead. `--only NAME` runs the sets whose name holds NAME.
"""

import argparse
import gc
import json
import time
from dataclasses import asdict, dataclass

from measure.answers import meaning, spec_of, wanted
from rich.console import Console
from rich.table import Table
from scipy import stats
from training.exams import exams
from training.samples import Sample

import dlm
from dlm.cli.command_line import fail
from dlm.cli.comparison.judging import found, same
from dlm.cli.engine_options import DECODINGS
from dlm.loading import Loading, Writes


@dataclass(frozen=True, kw_only=True)
class Row:
    """One set in one setting; rates are shares of the prompts."""

    kind: str  # of the prompts
    decoding: Writes
    constrained: bool
    prompts: int
    valid: int  # the text is JSON that the schema accepts, a call of a tool, a word of the list
    truncated: list[int]  # numbers of the prompts whose answer max_tokens cut off
    exact: int  # the value is the wanted one, a code fence forgiven
    fields: float  # share of the wanted values that are where they belong
    calls: float  # passes of the model a prompt
    tokens_per_call: float
    pins: float  # a prompt
    seconds: float  # a prompt, wall-clock


def main() -> None:
    args = arguments(__doc__, prompts=200, sets=True)
    chosen(exams(1, args.seed), args.only)  # all of them take a while to draw
    asked: dict[str, list[Sample]] = {}
    rows, notes = [], []
    for decoding in args.decoding:
        engine = loaded(args, decoding)
        asked = asked or chosen(exams(args.prompts, args.seed), args.only)
        for kind, samples in asked.items():
            pair, remarks = both(engine, decoding, kind, samples, args)
            rows += pair
            notes += remarks
        engine.close()
        del engine
        gc.collect()  # its parts know one another, and the next engine needs their memory
    if not args.json:
        order = [*asked]
        rows.sort(key=lambda row: order.index(row.kind))
        Console(width=120).print(table(rows))
        print("\n".join(notes))


def loaded(args: argparse.Namespace, decoding: Writes) -> dlm.Engine:
    try:
        return Loading(
            policy=dlm.Policy(), model=args.model, slots=args.slots, kv=args.kv, writes=decoding
        ).engine()
    except (dlm.DlmError, dlm.ModelError) as error:
        fail(str(error))


def arguments(what: str | None, prompts: int, sets: bool = False) -> argparse.Namespace:
    """Of a script whose docstring is `what`, with its usual number of prompts."""
    parser = argparse.ArgumentParser(description=(what or "").partition("\n")[0])
    parser.add_argument("--model", metavar="DIR", help="built in: tiny")
    parser.add_argument("--prompts", type=int, default=prompts)
    parser.add_argument("--seed", type=int, default=0, help="of the prompts and the generations")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--kv", default="auto", help="keys and values: fp8, bf16, fp16 or fp32")
    parser.add_argument("--json", action="store_true")
    if sets:
        parser.add_argument("--only", metavar="NAME", default="", help="sets whose name holds it")
        usual = ["canvas", "drafted"]
        purpose = f"ways to answer; {' '.join(usual)}"
        parser.add_argument("--decoding", nargs="+", choices=DECODINGS, default=usual, help=purpose)
    args = parser.parse_args()
    if args.prompts < 1:
        fail(f"--prompts is {args.prompts}: it takes at least 1")
    return args


def chosen(sets: dict[str, list[Sample]], name: str) -> dict[str, list[Sample]]:
    """The sets whose name holds `name`."""
    some = {kind: samples for kind, samples in sets.items() if name in kind}
    if not some:
        fail(f"no set's name holds {name!r}: there are {', '.join(sets)}")
    return some


def both(
    engine: dlm.Engine,
    decoding: Writes,
    kind: str,
    samples: list[Sample],
    args: argparse.Namespace,
) -> tuple[list[Row], list[str]]:
    """Without the constraint and with it; and what there is to say of the two."""
    rows, outcomes, notes = [], [], []
    for constrained in (False, True):
        how = f"{kind}, {decoding}, {'constrained' if constrained else 'free'}"
        with Console(stderr=True).status(how):
            row, exact = measure(engine, decoding, kind, samples, constrained, args)
        rows.append(row)
        outcomes.append(exact)
        if args.json:
            print(json.dumps(asdict(row)), flush=True)
        if row.truncated:
            notes.append(f"{how}: cut off at {args.max_tokens} tokens {row.truncated}")
    notes.append(f"{kind}, {decoding}: {paired(*outcomes)}")
    return rows, notes


def measure(
    engine: dlm.Engine,
    decoding: Writes,
    kind: str,
    samples: list[Sample],
    constrained: bool,
    args: argparse.Namespace,
) -> tuple[Row, list[bool]]:
    """Run all samples through the engine, which decodes by `decoding`; also says which of them came
    out exact."""
    specs = [spec_of(item) for item in samples]
    requests = [
        dlm.Request(
            prompt=item.prompt,
            tools=item.tools,
            constraint=spec if constrained else None,
            constrained=constrained,
            max_tokens=args.max_tokens,
            seed=args.seed * 1_000_003 + i,
            thinking=item.thought is not None,
        )
        for i, (item, spec) in enumerate(zip(samples, specs, strict=True))
    ]
    started = time.perf_counter()
    results = engine.generate(requests)
    seconds = time.perf_counter() - started
    said = [
        meaning(result, item, spec, engine.vocabulary)
        for result, item, spec in zip(results, samples, specs, strict=True)
    ]
    exact = [same(value, wanted(item)) for (_, value), item in zip(said, samples, strict=True)]
    right = [found(value, wanted(item)) for (_, value), item in zip(said, samples, strict=True)]
    calls, tokens = (sum(getattr(r.stats, name) for r in results) for name in ("calls", "tokens"))
    n = len(samples)
    row = Row(
        kind=kind,
        decoding=decoding,
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


def table(rows: list[Row]) -> Table:
    shown = Table(
        "prompts", *"decoding constraint valid cut exact fields calls tokens/call s/prompt".split()
    )
    for row in rows:
        shown.add_row(
            f"{row.kind} ({row.prompts})",
            row.decoding,
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


def paired(free: list[bool], bound: list[bool]) -> str:
    """Prompts that only one of the two got right, and how likely so uneven a split is by chance."""
    lost = sum(f and not b for f, b in zip(free, bound, strict=True))
    won = sum(b and not f for f, b in zip(free, bound, strict=True))
    chance = stats.binomtest(won, lost + won).pvalue if lost + won else 1.0
    return f"exact only free {lost}, only constrained {won} (two-sided sign test: p = {chance:.2g})"


if __name__ == "__main__":
    main()
