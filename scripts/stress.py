"""Constrain denoisers that work against the constraint, and check their answers.

    python scripts/stress.py --schemas FILE.jsonl[.xz] --tokenizer tokenizer.json
    python scripts/stress.py --schemas FILE --tokenizer FILE --model random spiteful endless \
      --sampler threshold surest edits --block 4 32 --budget roomy shortest --share 0.25

Every schema is decoded at the tokenizer's whole vocabulary, in each combination of denoiser,
sampler, canvas length and budget, or in a `--share` of them: at least one, and schemas that are not
refused take the combinations in turn. `roomy` is max(512, 2 x the shortest answer) tokens,
`shortest` is the shortest answer alone. About every half minute, a line on stderr shows how far the
run is.

The denoiser has no weights: `random` has random logits, `spiteful` prefers forbidden tokens, stop
tokens first, `endless` never prefers to stop, and `forgetful` wants an instance of the file, with
other tokens in a tenth of the positions of each pass (`measure/contrary.py`). The answer is judged
by `jsonschema`, and the file's own instances are read token by token. A masked canvas must reveal a
token in each pass, and no answer may hold a mask.

`tests/dlm/test_guarantees.py` and `tests/dlm/loop/test_revealing.py` put the whole engine to the
same test on a small vocabulary.
"""

import argparse
import json
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import cycle, islice, product
from typing import Any, get_args

import numpy as np
from evaluation.values import is_valid
from measure.contrary import SAMPLERS, Denoiser, answer, shortest
from measure.options import MeasureParser
from measure.report import print_table
from measure.schemas import MASK, L, read_schemas, vocabulary_of
from rich.console import Console

from dlm import JsonSchema
from dlm.grammar import Compiled, Compiler, GrammarError
from dlm.grammar.parse.matcher import Matcher

_BUDGETS = "roomy", "shortest"
_SPELLINGS: tuple[dict[str, Any], ...] = ({}, {"separators": (",", ":")}, {"indent": 2})


@dataclass(frozen=True, slots=True, kw_only=True)
class StressCase:
    """Setting in which a schema is decoded."""

    model: Denoiser
    sampler: str
    block: int  # positions of a canvas
    budget: str


@dataclass(kw_only=True)
class DecodedSchema:
    """Outcome of one schema in one case."""

    id: str
    split: str | None  # None: the file does not say
    case: StressCase | None = None  # None: its grammar was refused
    refused: str | None = None  # the reason why it was not decoded
    failed: str | None = None  # an exception while it was decoded, which is a bug
    valid: bool = False
    complete: bool = False
    shortest: int = 0  # tokens
    tokens: int = 0
    calls: int = 0  # passes of the denoiser
    idle: int = 0  # passes over a masked canvas that revealed nothing, or came too late
    masks: int = 0  # mask tokens in the answer
    seconds: float = 0.0
    compile_seconds: float = 0.0
    disagreements: list[str] = field(default_factory=list)  # about the file's own instances

    @property
    def good(self) -> bool:
        return self.valid and self.complete and not self.idle and not self.masks


def main() -> None:
    args = arguments()
    rows = list(stress(args))
    if args.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))
    else:
        show(rows)
    sys.exit(not all(row.good for row in rows if row.refused is None))


def arguments() -> argparse.Namespace:
    files = "schemas", "tokenizer"
    parser = MeasureParser(__doc__, *files, "limit", "seed", "json", required=files)
    for flag, choices, purpose in (
        ("--model", get_args(Denoiser), "The denoisers."),
        ("--sampler", [*SAMPLERS], "The samplers: that of noise, or of masks."),
        ("--budget", _BUDGETS, "The tokens that an answer may have."),
    ):
        default = choices[:1]
        parser.add_argument(flag, nargs="+", choices=choices, default=default, help=purpose)
    purpose = "The positions of a canvas."
    parser.add_argument("--block", nargs="+", type=int, default=[L], metavar="N", help=purpose)
    purpose = "The share of the combinations in which a schema is decoded; at least one."
    parser.add_argument("--share", type=float, default=1.0, metavar="X", help=purpose)
    purpose = "The least seconds between two lines of progress."
    parser.add_argument("--every", type=float, default=30.0, metavar="S", help=purpose)
    args = parser.parsed()
    if min(args.block) < 1:
        parser.error(f"--block must be at least 1, got {min(args.block)}")
    if not 0 <= args.share <= 1:
        parser.error(f"--share must be at least 0 and at most 1, got {args.share:g}")
    if not args.every >= 0:  # nan is not
        parser.error(f"--every must be at least 0, got {args.every:g}")
    return args


def stress(args: argparse.Namespace) -> Iterator[DecodedSchema]:
    compiler = Compiler(vocabulary_of(args.tokenizer, control=[MASK]))
    entries = read_schemas(args.schemas)
    random.Random(args.seed).shuffle(entries)  # a part of the file is a sample of all splits
    settings = product(args.model, args.sampler, args.block, args.budget)
    cases = [
        StressCase(model=model, sampler=sampler, block=block, budget=budget)
        for model, sampler, block, budget in settings
    ]
    random.Random(args.seed).shuffle(cases)
    count, turn = max(1, round(args.share * len(cases))), cycle(cases)
    entries, rows, shown = entries[: args.limit], list[DecodedSchema](), time.monotonic()
    for number, entry in enumerate(entries, 1):
        for row in decode(entry, compiler, islice(turn, count), args.seed):
            rows.append(row)
            yield row
            if time.monotonic() - shown >= args.every:
                shown = time.monotonic()
                print(progress_line(rows, number, len(entries)), file=sys.stderr, flush=True)


def progress_line(rows: Sequence[DecodedSchema], number: int, schemas: int) -> str:
    """Return how far a run is: its last row is of schema `number` of all its `schemas`."""
    ran = [row for row in rows if row.refused is None]
    good, refused = sum(row.good for row in ran), len(rows) - len(ran)
    return (
        f"schema {number} of {schemas}, {rows[-1].id}: {refused} refused so far, "
        f"{good} of {len(ran)} answers good"
    )


def decode(
    entry: dict[str, Any], compiler: Compiler, cases: Iterable[StressCase], seed: int
) -> Iterator[DecodedSchema]:
    """Yield the outcome of a schema in each case; the first one also has what is wrong with the
    file's instances. A schema that is refused takes none of the cases."""
    row = DecodedSchema(id=entry["id"], split=entry.get("split"))
    schema = entry["schema"]
    started = time.perf_counter()
    try:
        spec = JsonSchema(schema if isinstance(schema, str) else json.dumps(schema))
        compiled = compiler.compile(spec)
        row.shortest = shortest(compiled)
    except GrammarError as error:
        row.refused = str(error)
        yield row
        return
    row.compile_seconds = time.perf_counter() - started
    disagreements = list(instances(entry, compiled, spec))
    text = instance(entry, compiled)
    for case in cases:
        outcome = replace(row, case=case, disagreements=disagreements)
        answered = run(outcome, case, compiled, text, seed)
        if answered is not None:
            outcome.valid = is_valid(answered, spec.parsed)
        yield outcome
        disagreements = []


def run(
    row: DecodedSchema, case: StressCase, compiled: Compiled, text: list[int], seed: int
) -> str | None:
    """Decode a schema in a case, and note in its row how that went. `text` is a valid answer, if
    the file has one. Returns the text of the answer; None if there is none."""
    vocabulary = compiled.vocabulary
    max_tokens = row.shortest if case.budget == "shortest" else max(512, 2 * row.shortest)
    rng = np.random.default_rng([seed, *repr((row.id, case)).encode()])
    started = time.perf_counter()
    try:
        made = answer(
            compiled, case.model, max_tokens, rng, SAMPLERS[case.sampler], case.block, text
        )
    except Exception as error:  # it is counted, and decoding goes on with the next case
        traceback.print_exc()
        row.failed = repr(error)
        return None
    row.seconds = time.perf_counter() - started
    row.tokens, row.calls, row.idle = len(made.tokens), made.passes, made.idle + made.late
    row.masks = made.tokens.count(MASK)
    row.complete = made.tokens[-1] in vocabulary.stops and row.tokens <= max_tokens
    return vocabulary.text(made.tokens)


def instance(entry: dict[str, Any], compiled: Compiled) -> list[int]:
    """Return the tokens of the first valid instance in the file, with a stop; none without one."""
    valid = [test["data"] for test in entry.get("tests", []) if test["valid"]]
    vocabulary = compiled.vocabulary
    tokens = vocabulary.encode(json.dumps(valid[0])) if valid else []
    return [*tokens, vocabulary.stops[0]] if valid else []


def instances(entry: dict[str, Any], compiled: Compiled, spec: JsonSchema) -> Iterator[str]:
    """Yield the disagreements between the grammar and the marks of the file's instances."""
    for i, test in enumerate(entry.get("tests", [])):
        reads = [read_by(compiled, json.dumps(test["data"], **way)) for way in _SPELLINGS]
        accepted = any(rest is None for rest in reads)
        label = "valid" if test["valid"] else "invalid"
        if accepted == test["valid"]:
            continue
        judged = is_valid(json.dumps(test["data"]), spec.parsed)
        why = (
            ""
            if judged == test["valid"]
            else f"; jsonschema takes it for {'in' * (not judged)}valid"
        )
        how = "accepted" if accepted else f"refused before {max(reads, key=progress)!r:.60}"
        yield f"instance {i}, marked {label}, is {how}{why}"


def progress(rest: str | None) -> int:
    return -len(rest or "")


def read_by(compiled: Compiled, text: str) -> str | None:
    """Read a text token by token; return the rest that is refused, None if there is none."""
    vocabulary, matcher = compiled.vocabulary, Matcher(compiled)
    tokens = vocabulary.encode(text)
    taken = matcher.accept_all([*tokens, vocabulary.stops[0]])
    if taken < len(tokens):
        return vocabulary.text(tokens[taken:])
    return None if matcher.ended else "the end"


def groups(rows: Sequence[DecodedSchema]) -> Iterator[tuple[str, list[DecodedSchema]]]:
    """Yield the rows of each split, of each value of a setting that has several, and all."""
    for split in sorted({row.split for row in rows if row.split is not None}):
        yield split, [row for row in rows if row.split == split]
    cases = [row.case for row in rows if row.case is not None]
    for setting in StressCase.__dataclass_fields__:
        values = dict.fromkeys(getattr(case, setting) for case in cases)
        for value in values if len(values) > 1 else ():
            some = [row for row in rows if row.case and getattr(row.case, setting) == value]
            yield f"{setting} {value}", some
    yield "all", [*rows]


def show(rows: Sequence[DecodedSchema]) -> None:
    headings = "group schemas answers refused valid complete idle masks shortest tokens calls s"
    cells = []
    for name, part in groups(rows):
        ran = [row for row in part if row.refused is None]
        mean = [
            np.mean([getattr(row, name) for row in ran]) if ran else float("nan")
            for name in ("shortest", "tokens", "calls", "seconds")
        ]
        counts = len({row.id for row in part}), len(ran), len(part) - len(ran)
        good = (sum(getattr(row, name) for row in ran) for name in ("valid", "complete"))
        shares = (f"{count}/{len(ran)}" for count in good)
        bad = (sum(getattr(row, name) for row in ran) for name in ("idle", "masks"))
        means = (f"{value:.2f}" for value in mean)
        cells.append([name, *map(str, counts), *shares, *map(str, bad), *means])
    print_table(headings.split(), cells, width=140)
    console = Console(width=140)
    for reason, count in Counter(row.refused for row in rows if row.refused).most_common():
        console.print(f"refused ({count}): {reason}", markup=False)
    for row in rows:
        for disagreement in row.disagreements:
            console.print(f"{row.id}: {disagreement}", markup=False)
        if row.refused is None and not row.good:
            console.print(f"{row.id}: FAILED, {row}", markup=False)


if __name__ == "__main__":
    main()
