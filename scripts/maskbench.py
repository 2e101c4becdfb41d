"""Measure masks and matcher as MaskBench does: which schemas' instances are judged right, how fast.

    python scripts/maskbench.py --data maskbench.jsonl[.xz]
    python scripts/maskbench.py --data FILE --tokenizer tokenizer.json[.xz] --beside llguidance

A line of the file is one case: `{"id", "schema", "tests": [{"valid", "data"}]}`. A case passes if
its schema compiles, all valid instances are accepted and all invalid ones rejected. An instance is
written as `json.dumps(data, ensure_ascii=False)`. Without a tokenizer, instances are read byte by
byte. With one, they are read token by token, and the first `--timed` cases that have valid
instances are timed, in processor time on one thread: `cold` is the time of a mask and a commit
where nothing of the schema was asked before, `warm` the same instances read a second time.
"""

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from byte_vocabulary import of_bytes
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from rich.console import Console
from rich.table import Table
from stress import read_schemas, tokenizer_of, vocabulary_of

from dlm.collector import tune_garbage_collector
from dlm.grammar import Compiler, JsonSchema, Matcher, Vocabulary

READINGS = ("closed", "schema")  # of objects that do not say whether they are open
_SECONDS = 30.0  # of processor time for a compile that is only judged, not served


@dataclass(kw_only=True)
class Row:
    """The outcome of one case; the last two count instances."""

    id: str
    refused: str | None = None
    valid_rejected: int = 0
    invalid_accepted: int = 0

    @property
    def passing(self) -> bool:
        return not (self.refused or self.valid_rejected or self.invalid_accepted)


class Reader(Protocol):
    """One text of one schema, read token by token."""

    def allows(self, token: int) -> bool:
        """Compute the mask of what may come next; whether `token` is in it."""
        ...

    def commit(self, token: int) -> bool:
        """Move past `token`; False, and no move, where it is not allowed."""
        ...


Begin = Callable[[], Reader]


class Ours:
    """Reads by this project's masks and matcher."""

    def __init__(self, compiled: Any):
        self._matcher, self._masks = Matcher(compiled), compiled.masks

    def allows(self, token: int) -> bool:
        mask = self._matcher.mask()
        if mask < 0:
            return token == ~mask
        return bool(self._masks.words(mask)[token >> 5] >> (token & 31) & 1)

    def commit(self, token: int) -> bool:
        return self._matcher.accept(token)


class Theirs:
    """Reads by llguidance's."""

    def __init__(self, matcher: LLMatcher, stop: int):
        self._matcher, self._stop = matcher, stop

    def allows(self, token: int) -> bool:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
        return bool(bits[token >> 5] >> (token & 31) & 1)

    def commit(self, token: int) -> bool:
        if token == self._stop:
            return self._matcher.is_accepting()
        return self._matcher.try_consume_tokens([token]) == 1


class OurEngine:
    """Compiles schemas by this project."""

    def __init__(self, vocabulary: Vocabulary, additional_properties: str):
        self._compiler, self._reading = Compiler(vocabulary), additional_properties
        self.compile(True)  # what all grammars of a vocabulary share

    def compile(self, schema: Any) -> Begin:
        """Raises `ValueError`, with the reason as its text."""
        compiled = self._compiler.compile(
            JsonSchema(schema, additional_properties=self._reading)  # pyright: ignore[reportArgumentType]
        )
        compiled.mask(compiled.parser.start)
        return lambda: Ours(compiled)


class TheirEngine:
    """Compiles schemas by llguidance, strict as it is by default."""

    def __init__(self, tokenizer: Any, stop: int):
        self._tokenizer, self._stop = from_tokenizer(tokenizer, eos_token=stop), stop

    def compile(self, schema: Any) -> Begin:
        source = LLMatcher.grammar_from_json_schema(schema)
        first = LLMatcher(self._tokenizer, source, log_level=0)
        if first.is_error():
            raise ValueError(first.get_error())
        first.compute_bitmask()
        return lambda: Theirs(LLMatcher(self._tokenizer, source, log_level=0), self._stop)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="JSON lines, .xz or plain")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json, .xz or plain")
    parser.add_argument("--additional-properties", choices=READINGS, default="schema")
    parser.add_argument("--beside", choices=["llguidance"], help="measure this one, too")
    parser.add_argument("--limit", type=int, help="cases at most; default: all")
    parser.add_argument("--timed", type=int, default=120, help="cases of which tokens are timed")
    parser.add_argument("--seed", type=int, default=0, help="of the order of cases")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    args = parser.parse_args()
    if args.beside and not args.tokenizer:
        parser.error("--beside needs --tokenizer: llguidance reads tokens")
    cases = read_schemas(args.data)
    random.Random(args.seed).shuffle(cases)
    cases = cases[: args.limit]
    vocabulary = vocabulary_of(args.tokenizer) if args.tokenizer else of_bytes()
    ours = OurEngine(vocabulary, args.additional_properties)
    tune_garbage_collector()  # as a server would
    found = measure(ours, cases, vocabulary, args.timed if args.tokenizer else 0)
    if args.beside:
        theirs = TheirEngine(tokenizer_of(args.tokenizer), vocabulary.stops[0])
        found["beside"] = {args.beside: measure(theirs, cases, vocabulary, args.timed)}
    if args.json:
        print(json.dumps(found))
    else:
        show(found)


def measure(
    engine: OurEngine | TheirEngine, cases: list[dict], vocabulary: Vocabulary, timed: int
) -> dict[str, Any]:
    """The measures of all `cases`; token times of the first `timed` that have valid instances."""
    rows, compiles = [], []
    times: dict[str, list[float]] = {"cold": [], "warm": []}
    for case in cases:
        row = Row(id=case["id"])
        rows.append(row)
        texts = [(test["valid"], written(test["data"])) for test in case["tests"]]
        valid = [text for is_valid, text in texts if is_valid]
        begun = time.process_time()
        try:
            begin = engine.compile(case["schema"])
        except ValueError as error:
            row.refused = str(error)
            continue
        finally:
            compiles.append(1000 * (time.process_time() - begun))
        if valid and timed > 0:
            timed -= 1
            for name in times:
                for text in valid:
                    times[name] += clocked(begin(), tokens_of(vocabulary, text))
        for is_valid, text in texts:
            accepted = reads(begin(), tokens_of(vocabulary, text))
            row.valid_rejected += is_valid and not accepted
            row.invalid_accepted += accepted and not is_valid
    return {
        "cases": len(rows),
        "passing": sum(row.passing for row in rows),
        "refused": sum(row.refused is not None for row in rows),
        "valid_rejected": sum(row.valid_rejected > 0 for row in rows),
        "invalid_accepted": sum(row.invalid_accepted > 0 for row in rows),
        "compile_ms": summary(compiles),
        "mask_us": {name: summary(each) for name, each in times.items() if each},
        "rows": [asdict(row) for row in rows],
    }


def written(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False)


def tokens_of(vocabulary: Vocabulary, text: str) -> list[int]:
    """The tokens of a text, spelled by the tokenizer, and the stop after them."""
    return [*vocabulary.encode(text), vocabulary.stops[0]]


def reads(reader: Reader, tokens: Sequence[int]) -> bool:
    """Whether all `tokens` are accepted; no masks are made."""
    return all(map(reader.commit, tokens))


def clocked(reader: Reader, tokens: Sequence[int]) -> Iterator[float]:
    """Microseconds of a mask and a commit, token by token, up to one that is not allowed."""
    for token in tokens:
        begun = time.thread_time_ns()
        allowed = reader.allows(token)
        if allowed:
            reader.commit(token)
        yield (time.thread_time_ns() - begun) / 1000
        if not allowed:
            return


def summary(numbers: Sequence[float]) -> dict[str, float]:
    if not numbers:
        return {}
    p50, p90, p99 = (round(float(each), 3) for each in np.percentile(numbers, [50, 90, 99]))
    highest = round(max(numbers), 3)
    return {"p50": p50, "p90": p90, "p99": p99, "max": highest, "count": len(numbers)}


def show(found: dict[str, Any]) -> None:
    """Print the tables, and the most frequent reasons of refusals."""
    console, table = Console(), Table()
    for heading in ("", "cases", "passing", "refused", "valid rejected", "invalid accepted"):
        table.add_column(heading, justify="left" if not heading else "right")
    engines = {"dlm": found, **found.get("beside", {})}
    for name, each in engines.items():
        counts = ("refused", "valid_rejected", "invalid_accepted")
        share = f"{each['passing']} ({each['passing'] / max(1, each['cases']):.2%})"
        table.add_row(name, str(each["cases"]), share, *(str(each[key]) for key in counts))
    console.print(table)
    clocks = Table()
    for heading in ("", "p50", "p90", "p99", "max", "count"):
        clocks.add_column(heading, justify="left" if not heading else "right")
    for name, each in engines.items():
        clocks.add_row(f"{name}: compile, ms", *(str(v) for v in each["compile_ms"].values()))
        for kind, numbers in each["mask_us"].items():
            clocks.add_row(f"{name}: token, {kind}, us", *(str(v) for v in numbers.values()))
    console.print(clocks)
    reasons = Counter(reason_of(row["refused"]) for row in found["rows"] if row["refused"])
    for reason, count in reasons.most_common(20):
        console.print(f"{count:5} refused: {reason}")


def reason_of(message: str) -> str:
    """The part of a refusal that other schemas share: without its place and quoted words."""
    return message.partition(": ")[2].partition(";")[0][:90] or message[:90]


if __name__ == "__main__":
    main()
