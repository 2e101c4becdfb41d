"""Measure masks and matcher as MaskBench does: how many cases are judged correctly, and how fast.

    python scripts/maskbench.py --data maskbench.jsonl[.xz]
    python scripts/maskbench.py --data FILE --tokenizer tokenizer.json[.xz] --beside llguidance
    python scripts/maskbench.py --data FILE --kind tools
    python scripts/maskbench.py --data FILE --kind tools --together 20 --tokenizer FILE

A line of the file is one case: `{"id", "schema", "tests": [{"valid", "data"}]}`. A case passes if
its schema compiles, all valid instances are accepted and all invalid ones rejected. An instance is
written as `json.dumps(data, ensure_ascii=False)`. Without a tokenizer, instances are read byte by
byte. With one, they are read token by token, and the first `--timed` cases that have valid
instances are timed, in processor time on one thread: `cold` is the time of a mask and a commit
when a schema is first used, `warm` the same when its instances are read a second time.

`first` is the time from a schema to the end of its first instance: compiling, and a mask and a
commit for each token. `--together N` makes one schema of each N cases: a call of one of N functions
that have their schemas as parameters, as an agent's first request brings them. Cases with
references are left out, since they would point elsewhere.

`--kind tools` measures the parameters of functions alone, the cases of MaskBench whose `id` begins
with BFCL or Glaive; `--kind schemas` measures all others. The data are guidance-ai/jsonschemabench
on GitHub, one JSON file a case, whose name is the `id`.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from measure.options import MeasureParser
from measure.report import percentiles, print_table
from measure.schemas import of_bytes, read_schemas, tokenizer_of, vocabulary_of

from dlm.grammar import Compiler, JsonSchema, Matcher, Vocabulary
from dlm.grammar.schema.drafts import REFERENCES
from dlm.loading import tune_process

KINDS = ("tools", "schemas")  # of cases
_OF_TOOLS = ("BFCL", "Glaive")  # beginnings of the `id` of cases of functions' parameters
READINGS = ("closed", "schema")  # of objects without `additionalProperties`


@dataclass(kw_only=True)
class JudgedCase:
    """Outcome of one case."""

    id: str
    refused: str | None = None  # the reason
    valid_rejected: int = 0  # instances
    invalid_accepted: int = 0

    @property
    def passing(self) -> bool:
        return not (self.refused or self.valid_rejected or self.invalid_accepted)


class TokenReader(Protocol):
    """A reader of one text of one schema, token by token."""

    def allows(self, token: int) -> bool:
        """Compute the mask of the next token; return whether it has `token`."""
        ...

    def commit(self, token: int) -> bool:
        """Move past `token`; return False, without moving, if it is not allowed."""
        ...


Begin = Callable[[], TokenReader]


class OurReader:
    """A reader that uses this project's masks and matcher."""

    def __init__(self, compiled: Any):
        self._matcher, self._masks = Matcher(compiled), compiled.masks

    def allows(self, token: int) -> bool:
        mask = self._matcher.mask()
        if mask < 0:
            return token == ~mask
        return bool(self._masks.words(mask)[token >> 5] >> (token & 31) & 1)

    def commit(self, token: int) -> bool:
        return self._matcher.accept(token)


class TheirReader:
    """A reader that uses llguidance."""

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
    """A compiler of schemas, by this project."""

    def __init__(self, vocabulary: Vocabulary, additional_properties: str):
        self._compiler, self._reading = Compiler(vocabulary), additional_properties
        self.compile(True)  # makes what all grammars of a vocabulary share

    def compile(self, schema: Any) -> Begin:
        """Raises `ValueError`, with the reason as its text."""
        compiled = self._compiler.compile(
            JsonSchema(schema, additional_properties=self._reading)  # pyright: ignore[reportArgumentType]
        )
        compiled.state_masks.mask(compiled.parser.start)
        return lambda: OurReader(compiled)


class TheirEngine:
    """A compiler of schemas, by llguidance with its strict defaults."""

    def __init__(self, tokenizer: Any, stop: int):
        self._tokenizer, self._stop = from_tokenizer(tokenizer, eos_token=stop), stop

    def compile(self, schema: Any) -> Begin:
        source = LLMatcher.grammar_from_json_schema(schema)
        first = LLMatcher(self._tokenizer, source, log_level=0)
        if first.is_error():
            raise ValueError(first.get_error())
        first.compute_bitmask()
        return lambda: TheirReader(LLMatcher(self._tokenizer, source, log_level=0), self._stop)


def main() -> None:
    parser = MeasureParser(__doc__, "tokenizer", "limit", "seed", "json")
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="FILE", help="Cases, a .jsonl or .xz file.")
    purpose = (
        "Cases that are measured: tools, parameters of functions; schemas, others. Default: all."
    )
    add("--kind", choices=KINDS, help=purpose)
    purpose = "The properties of objects that do not say: closed, only those named; schema, any."
    add("--additional-properties", choices=READINGS, default="schema", help=purpose)
    add("--beside", choices=["llguidance"], help="Another engine that is measured, too.")
    purpose = "The number of cases whose tokens are timed."
    add("--timed", type=int, default=120, metavar="N", help=purpose)
    purpose = "The functions that a case offers, each with another schema. Default: 1, no call."
    parser.add_count("--together", 1, purpose)
    args = parser.parsed()
    if args.beside and not args.tokenizer:
        parser.error("--beside needs --tokenizer: llguidance reads tokens")
    cases = [case for case in read_schemas(args.data) if args.kind in (None, kind_of(case))]
    random.Random(args.seed).shuffle(cases)
    if args.together > 1:
        cases = calls_of(cases, args.together)
    if not cases:
        kind = f" of the kind {args.kind}" if args.kind else ""
        count = f" for {args.together} functions" if args.together > 1 else ""
        parser.error(f"{args.data} has no cases{kind}{count}")
    cases = cases[: args.limit]
    vocabulary = vocabulary_of(args.tokenizer) if args.tokenizer else of_bytes()
    ours = OurEngine(vocabulary, args.additional_properties)
    tune_process()  # as a server would
    found = measure(ours, cases, vocabulary, args.timed if args.tokenizer else 0)
    if args.beside:
        theirs = TheirEngine(tokenizer_of(args.tokenizer), vocabulary.stops[0])
        found["beside"] = {args.beside: measure(theirs, cases, vocabulary, args.timed)}
    if args.json:
        print(json.dumps(found))
    else:
        show(found)


def kind_of(case: dict[str, Any]) -> str:
    """Return which of `KINDS` a case is."""
    return "tools" if case["id"].startswith(_OF_TOOLS) else "schemas"


def calls_of(cases: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return a case for each `count` cases: a call of one of as many functions.

    Its instances are calls with the instances of the cases as arguments. Fewer cases than `count`
    that are left over, and cases with references, are not in the result.
    """
    usable = [case for case in cases if not _refers(case["schema"])]
    groups = [usable[i : i + count] for i in range(0, len(usable) - count + 1, count)]
    return [
        {
            "id": group[0]["id"],
            "schema": {"anyOf": [_call(i, case["schema"]) for i, case in enumerate(group)]},
            "tests": [
                {**test, "data": {"name": f"function_{i}", "arguments": test["data"]}}
                for i, case in enumerate(group)
                for test in case["tests"]
            ],
        }
        for group in groups
    ]


def _refers(schema: Any) -> bool:
    """Whether the schema has a reference, or a property of such a name."""
    text = json.dumps(schema)
    return any(f'"{word}"' in text for word in REFERENCES)


def _call(number: int, parameters: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": f"function_{number}"}, "arguments": parameters},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def measure(
    engine: OurEngine | TheirEngine, cases: list[dict], vocabulary: Vocabulary, timed: int
) -> dict[str, Any]:
    """Return the figures of all `cases`, and token times of the first `timed` with instances."""
    rows, compiles, firsts = [], [], []
    times: dict[str, list[float]] = {"cold": [], "warm": []}
    for case in cases:
        row = JudgedCase(id=case["id"])
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
            for name, sums in times.items():
                for text in valid:
                    clock = [*clocked(begin(), tokens_of(vocabulary, text))]
                    if name == "cold" and text is valid[0]:
                        firsts.append(compiles[-1] + sum(clock) / 1000)
                    sums += clock
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
        "first_ms": summary(firsts),
        "mask_us": {name: summary(each) for name, each in times.items() if each},
        "rows": [asdict(row) for row in rows],
    }


def written(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False)


def tokens_of(vocabulary: Vocabulary, text: str) -> list[int]:
    """Return the tokens of a text as the tokenizer spells it, and the stop after them."""
    return [*vocabulary.encode(text), vocabulary.stops[0]]


def reads(reader: TokenReader, tokens: Sequence[int]) -> bool:
    """Whether `reader` accepts all `tokens`; no masks are made."""
    return all(map(reader.commit, tokens))


def clocked(reader: TokenReader, tokens: Sequence[int]) -> Iterator[float]:
    """Yield the microseconds of a mask and a commit, up to a token that is not allowed."""
    for token in tokens:
        begun = time.thread_time_ns()
        allowed = reader.allows(token)
        if allowed:
            reader.commit(token)
        yield (time.thread_time_ns() - begun) / 1000
        if not allowed:
            return


def summary(numbers: Sequence[float]) -> dict[str, float]:
    found = percentiles(numbers, (50, 90, 99), digits=3)
    return {**found, "count": len(numbers)} if found else {}


def show(found: dict[str, Any]) -> None:
    """Print the tables, and the most frequent reasons of refusals."""
    engines = {"dlm": found, **found.get("beside", {})}
    judged, clocks = [], []
    for name, each in engines.items():
        counts = (each[key] for key in ("refused", "valid_rejected", "invalid_accepted"))
        share = f"{each['passing']} ({each['passing'] / max(1, each['cases']):.2%})"
        judged.append([name, str(each["cases"]), share, *map(str, counts)])
        for label, key in (("compile", "compile_ms"), ("first", "first_ms")):
            if each[key]:
                clocks.append([f"{name}: {label}, ms", *map(str, each[key].values())])
        for kind, numbers in each["mask_us"].items():
            clocks.append([f"{name}: token, {kind}, us", *map(str, numbers.values())])
    headings = "", "cases", "passing", "refused", "valid rejected", "invalid accepted"
    print_table(headings, judged)
    print_table(("", "p50", "p90", "p99", "max", "count"), clocks)
    reasons = Counter(reason_of(row["refused"]) for row in found["rows"] if row["refused"])
    for reason, count in reasons.most_common(20):
        print(f"{count:5} refused: {reason}")


def reason_of(message: str) -> str:
    """Return the part of a refusal that other schemas share: without its place and its quotes."""
    return message.partition(": ")[2].partition(";")[0][:90] or message[:90]


if __name__ == "__main__":
    main()
