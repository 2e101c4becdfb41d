"""Constrain denoisers that work against the constraint, and check their answers.

    python scripts/stress.py --schemas FILE.jsonl[.xz] --tokenizer tokenizer.json

Every schema is decoded at the tokenizer's whole vocabulary, on canvases of 256, in at most
max(512, 2 x the shortest answer) tokens. The denoiser has no weights: `random` has random logits,
`spiteful` prefers forbidden tokens, stop tokens first, and `endless` never prefers to stop. The
answer is judged by `jsonschema`, and the file's own instances are read token by token.

The loop is the engine's own: constraint, settling, pins and budget. Only the arithmetic on `[L, V]`
logits is left out, which cannot change the result: for random logits, the best of some allowed
tokens is any of them. `tests/dlm/test_guarantees.py` puts the whole engine to the same test on a
small vocabulary.
"""

import argparse
import json
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from evaluation.values import is_valid
from measure.options import MeasureParser
from measure.report import print_table
from measure.schemas import PAD, STOPS, L, read_schemas, vocabulary_of
from rich.console import Console

from dlm import DecodeConfig, JsonSchema, Stats
from dlm.canvas import Canvas
from dlm.grammar import (
    BudgetError,
    Candidates,
    Compiled,
    Compiler,
    Frontier,
    GrammarError,
    Vocabulary,
)
from dlm.grammar.masks import tokens_in
from dlm.grammar.parse.matcher import Matcher

_OPENING = ("[", "{", '"', "a", " ", ",", "1", "\\")
_SPELLINGS: tuple[dict[str, Any], ...] = ({}, {"separators": (",", ":")}, {"indent": 2})


@dataclass(kw_only=True)
class DecodedSchema:
    """Outcome of one schema."""

    id: str
    split: str
    compiled: bool = False
    refused: str | None = None  # the reason why it was not decoded
    failed: str | None = None  # an exception while it was decoded, which is a bug
    valid: bool = False
    complete: bool = False
    shortest: int | None = None  # tokens
    tokens: int = 0
    calls: int = 0  # passes of the denoiser
    seconds: float = 0.0
    compile_seconds: float = 0.0
    disagreements: list[str] = field(default_factory=list)  # about the file's own instances


class Wishes:
    """Scores of a denoiser without weights, drawn when they are read."""

    def __init__(self, kind: str, vocabulary: Vocabulary, rng: np.random.Generator):
        self._kind, self._vocabulary, self._rng = kind, vocabulary, rng
        size, stops = len(vocabulary), list(vocabulary.stops)
        self.argmax: list[int] = rng.integers(size, size=L).tolist()
        if kind == "spiteful":
            self.argmax = rng.choice([*stops, vocabulary.pad, *vocabulary.control], size=L).tolist()
        elif kind == "endless":  # it opens brackets and strings and does not close them
            opening = [vocabulary.fewest([piece.encode()]) for piece in _OPENING]
            wanted = [tokens[0] for tokens in opening if tokens]
            self.argmax = rng.choice([*wanted, *self.argmax[: len(wanted)]], size=L).tolist()

    def best(self, position: int, allowed: np.ndarray) -> int:
        return self.candidates(position, allowed, 1).ranked[0][0]

    def candidates(self, position: int, allowed: np.ndarray, count: int) -> Candidates:
        tokens = tokens_in(allowed)
        if not len(tokens):
            return Candidates(ranked=[], mass=0.0)
        stops = np.isin(tokens, self._vocabulary.stops)
        if self._kind == "spiteful" and stops.any():
            tokens = tokens[stops]
        elif self._kind == "endless" and not stops.all():
            tokens = tokens[~stops]
        some = self._rng.choice(tokens, size=min(count, len(tokens)), replace=False)
        share = len(tokens) / len(self._vocabulary)
        logp = float(np.log(1 / len(self._vocabulary)))
        return Candidates(ranked=[(int(token), logp) for token in some], mass=share)


def main() -> None:
    args = arguments()
    rows = list(stress(args))
    if args.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))
    else:
        show(rows)
    decoded = [row for row in rows if row.compiled and row.refused is None]
    sys.exit(not all(row.valid and row.complete for row in decoded))


def arguments() -> argparse.Namespace:
    files = "schemas", "tokenizer"
    parser = MeasureParser(__doc__, *files, "limit", "seed", "json", required=files)
    purpose = "The denoiser."
    models = "random", "spiteful", "endless"
    parser.add_argument("--model", choices=models, default="random", help=purpose)
    return parser.parsed()


def stress(args: argparse.Namespace) -> Iterator[DecodedSchema]:
    compiler = Compiler(vocabulary_of(args.tokenizer))
    entries = read_schemas(args.schemas)
    random.Random(args.seed).shuffle(entries)  # a part of the file is a sample of all splits
    shown = Console(stderr=True)
    with shown.status("") as status:
        for i, entry in enumerate(entries[: args.limit]):
            status.update(f"{i + 1}: {entry['id']}")
            yield decode(entry, compiler, args.model, args.seed)


def decode(entry: dict[str, Any], compiler: Compiler, model: str, seed: int) -> DecodedSchema:
    row = DecodedSchema(id=entry["id"], split=entry["split"])
    schema = entry["schema"]
    started = time.perf_counter()
    try:
        spec = JsonSchema(schema if isinstance(schema, str) else json.dumps(schema))
        compiled = compiler.compile(spec)
        row.compiled = True
        row.shortest = shortest(compiled)
    except GrammarError as error:
        row.refused = str(error)
        return row
    finally:
        row.compile_seconds = time.perf_counter() - started
    vocabulary, rng = compiler.vocabulary, np.random.default_rng([seed, *entry["id"].encode()])
    max_tokens = max(512, 2 * row.shortest)
    started = time.perf_counter()
    try:
        tokens, stats = run(compiled, model, max_tokens, rng)
    except Exception as error:  # it is counted, and decoding goes on with the next schema
        traceback.print_exc()
        row.failed = repr(error)
        return row
    row.seconds = time.perf_counter() - started
    row.tokens, row.calls = len(tokens), stats.denoiser_calls
    row.complete = tokens[-1] in vocabulary.stops and row.tokens <= max_tokens
    row.valid = is_valid(vocabulary.text(tokens), spec.parsed)
    row.disagreements = list(instances(entry, compiled, spec))
    return row


def shortest(compiled: Compiled) -> int:
    """Return the tokens of the shortest answer, its stop included."""
    try:
        Frontier(compiled, 1)
    except BudgetError as error:
        return error.needed
    return 1


def run(
    compiled: Compiled, model: str, max_tokens: int, rng: np.random.Generator
) -> tuple[list[int], Stats]:
    """Run the engine's loop for one request, on scores instead of logits."""
    config, vocabulary = DecodeConfig(stops=STOPS, pad=PAD), compiled.vocabulary
    constraint, stats, tokens = Frontier(compiled, max_tokens), Stats(), []
    constraint.work = 1 << 60
    nothing = torch.zeros(1)
    while not tokens or (tokens[-1] not in STOPS and len(tokens) < max_tokens):
        canvas = Canvas(tokens=nothing, soft_embedding=nothing, stats=stats)
        while True:
            wishes = Wishes(model, vocabulary, rng)
            guidance = constraint.guide(wishes, canvas.fixed(config.sampler.max_steps))
            if canvas.settle(guidance, float("inf"), config):
                break
        committed = guidance.guess[: guidance.stop + 1][: max_tokens - len(tokens)]
        constraint.commit(committed)
        tokens += committed
    return tokens, stats


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


def show(rows: Sequence[DecodedSchema]) -> None:
    headings = "split schemas compiled refused valid complete shortest tokens calls s/schema"
    cells = []
    splits = sorted({row.split for row in rows})
    for split in [*splits, "all"]:
        part = [row for row in rows if split in ("all", row.split)]
        ran = [row for row in part if row.compiled and row.refused is None]
        mean = [
            np.mean([getattr(row, name) for row in ran]) if ran else float("nan")
            for name in ("shortest", "tokens", "calls", "seconds")
        ]
        counts = len(part), len(ran), len(part) - len(ran)
        good = (sum(getattr(row, name) for row in ran) for name in ("valid", "complete"))
        shares = (f"{count}/{len(ran)}" for count in good)
        cells.append([split, *map(str, counts), *shares, *(f"{value:.2f}" for value in mean)])
    print_table(headings.split(), cells, width=120)
    console = Console(width=120)
    for reason, count in Counter(row.refused for row in rows if row.refused).most_common():
        console.print(f"refused ({count}): {reason}", markup=False)
    for row in rows:
        for disagreement in row.disagreements:
            console.print(f"{row.id}: {disagreement}", markup=False)
        if row.compiled and row.refused is None and not (row.valid and row.complete):
            console.print(f"{row.id}: FAILED, {row}", markup=False)


if __name__ == "__main__":
    main()
