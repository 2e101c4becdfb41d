"""Measure a model on held-out prompts, without a constraint and with one.

    python scripts/evaluate.py --prompts 200

Sets: sentences of trained patterns and of held-out ones, all with values that no training sample
has; texts that also mention other values; lists and nested objects; strings of random letters; tool
calls; words to choose; sentences by other authors; sentences whose keys only the schema names;
calls of made-up tools that are only offered, answers after their results, requests that need none.
Each is answered on canvases, and left to right
with drafts of canvases, unless `--decoding` chooses. "exact" and "fields" (the share of wanted
values that are right) ignore a code fence around JSON; "valid" does not. Prints a table, or with
--json one object a line. `--only NAME...` runs the sets whose name contains one of the
names, `--constrained` leaves out the answers without a constraint.
"""

import argparse
import gc
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, get_args

from measure.options import MeasureParser
from measure.report import ResultRow, print_rows
from rich.console import Console
from scipy import stats
from training.lessons import exams
from training.samples import Sample

import dlm
from dlm.cli.command_line import fail
from dlm.cli.compare.judging import MISSING, found, is_valid, same, value_of
from dlm.config import Writes
from dlm.grammar import InvalidValueError, Spec, Vocabulary
from dlm.loading import Loading


@dataclass(kw_only=True)
class EvaluationRow(ResultRow):
    """Figures of one set in one setting."""

    COLUMNS: ClassVar = {
        "prompts": "{0.kind} ({0.prompts})",
        "decoding": "{0.decoding}",
        "constraint": "{0.constraint}",
        "valid": "{0.valid_share:.3f}",
        "cut": "{0.cut}",
        "exact": "{0.exact_share:.3f}",
        "fields": "{0.fields:.3f}",
        "text": "{0.text_share:.3f}",
        "calls": "{0.calls:.2f}",
        "tokens/call": "{0.tokens_per_call:.2f}",
        "s/prompt": "{0.seconds:.3f}",
    }

    kind: str  # of the prompts
    decoding: Writes
    constrained: bool
    prompts: int
    valid: int  # answers that are JSON of the schema, a call of a tool, a word of the list
    truncated: list[int]  # numbers of the prompts whose answer max_tokens cut off
    exact: int  # answers whose value is the wanted one, a code fence forgiven
    fields: float  # share of the wanted values that are at their places
    texts: int  # answers that end by themselves and call no tool
    calls: float  # passes of the model a prompt
    tokens_per_call: float
    pins: float  # a prompt
    seconds: float  # a prompt, wall-clock

    @property
    def constraint(self) -> str:
        return "yes" if self.constrained else "no"

    @property
    def cut(self) -> int:
        return len(self.truncated)

    @property
    def valid_share(self) -> float:
        return self.valid / self.prompts

    @property
    def exact_share(self) -> float:
        return self.exact / self.prompts

    @property
    def text_share(self) -> float:
        return self.texts / self.prompts


def main() -> None:
    args = arguments(__doc__, prompts=200, sets=True)
    chosen(exams(1, args.seed), args.only)  # checks --only before all prompts are drawn
    sets: dict[str, list[Sample]] = {}
    rows, notes = [], []
    for decoding in args.decoding:
        engine = loaded(args, decoding)
        sets = sets or chosen(exams(args.prompts, args.seed), args.only)
        for kind, samples in sets.items():
            pair, remarks = both(engine, decoding, kind, samples, args)
            rows += pair
            notes += remarks
        engine.close()
        del engine
        gc.collect()  # the engine's parts refer to each other, and the next needs their memory
    if not args.json:
        order = [*sets]
        rows.sort(key=lambda row: order.index(row.kind))
        print_rows(rows, False, width=120)
        print("\n".join(notes))


def loaded(args: argparse.Namespace, decoding: Writes) -> dlm.Engine:
    try:
        return Loading(
            policy=dlm.Policy(), model=args.model, slots=args.slots, kv=args.kv, writes=decoding
        ).engine()
    except (dlm.DlmError, dlm.ModelError) as error:
        fail(str(error))


def arguments(doc: str | None, prompts: int, sets: bool = False) -> argparse.Namespace:
    """Return the flags of a script with the docstring `doc`, with `prompts` as the default."""
    parser = MeasureParser(doc, "model", "seed", "json")
    parser.add_count("--prompts", prompts, "The prompts of each set.")
    parser.add_count("--max-tokens", 160, "The most tokens of an answer.")
    parser.add_count("--slots", 8, "The prompts that are answered at once.")
    add = parser.add_argument
    purpose = "The type in which keys and values are stored: auto, fp8, bf16, fp16 or fp32."
    add("--kv", default="auto", metavar="TYPE", help=purpose)
    if sets:
        purpose = "Run only the sets whose name contains one of the names."
        add("--only", nargs="+", metavar="NAME", default=[""], help=purpose)
        add("--constrained", action="store_true", help="Leave out answers without a constraint.")
        purpose = "The ways to decode. Default: canvas drafted."
        add("--decoding", nargs="+", choices=get_args(Writes), help=purpose)
        parser.set_defaults(decoding=["canvas", "drafted"])
    return parser.parsed()


def chosen(sets: dict[str, list[Sample]], names: Sequence[str]) -> dict[str, list[Sample]]:
    """Return the sets whose name contains one of `names`."""
    for name in names:
        if not any(name in kind for kind in sets):
            fail(f"no set's name holds {name!r}: there are {', '.join(sets)}")
    return {kind: samples for kind, samples in sets.items() if any(name in kind for name in names)}


def both(
    engine: dlm.Engine,
    decoding: Writes,
    kind: str,
    samples: list[Sample],
    args: argparse.Namespace,
) -> tuple[list[EvaluationRow], list[str]]:
    """Measure a set without the constraint and with it, or only with it; return the rows, and notes
    on them."""
    rows, outcomes, notes = [], [], []
    for constrained in (True,) if args.constrained else (False, True):
        how = f"{kind}, {decoding}, {'constrained' if constrained else 'free'}"
        with Console(stderr=True).status(how):
            row, exact = measure(engine, decoding, kind, samples, constrained, args)
        rows.append(row)
        outcomes.append(exact)
        if args.json:
            print(json.dumps(asdict(row)), flush=True)
        if row.truncated:
            notes.append(f"{how}: cut off at {args.max_tokens} tokens {row.truncated}")
    if not args.constrained:
        notes.append(f"{kind}, {decoding}: {paired(*outcomes)}")
    return rows, notes


def measure(
    engine: dlm.Engine,
    decoding: Writes,
    kind: str,
    samples: list[Sample],
    constrained: bool,
    args: argparse.Namespace,
) -> tuple[EvaluationRow, list[bool]]:
    """Answer all samples; return the row, and for each sample whether its answer is exact."""
    specs = [spec_of(item) for item in samples]
    requests = [
        request_of(item, spec if constrained else None, i, args)
        for i, (item, spec) in enumerate(zip(samples, specs, strict=True))
    ]
    started = time.perf_counter()
    results = engine.generate(requests)
    seconds = time.perf_counter() - started
    answers = [
        meaning(result, item, spec, engine.vocabulary)
        for result, item, spec in zip(results, samples, specs, strict=True)
    ]
    exact = [same(value, wanted(item)) for (_, value), item in zip(answers, samples, strict=True)]
    right = [found(value, wanted(item)) for (_, value), item in zip(answers, samples, strict=True)]
    calls, tokens = (sum(getattr(r.stats, name) for r in results) for name in ("calls", "tokens"))
    n = len(samples)
    row = EvaluationRow(
        kind=kind,
        decoding=decoding,
        constrained=constrained,
        prompts=n,
        valid=sum(valid for valid, _ in answers),
        truncated=[i for i, r in enumerate(results) if r.finish_reason == "length"],
        exact=sum(exact),
        fields=sum(hits for hits, _ in right) / sum(all_ for _, all_ in right),
        texts=sum(r.finish_reason == "stop" and not r.tool_calls for r in results),
        calls=calls / n,
        tokens_per_call=tokens / calls,
        pins=sum(r.stats.pins for r in results) / n,
        seconds=seconds / n,
    )
    return row, exact


def spec_of(item: Sample) -> Spec:
    """Return the constraint that fits a sample's task.

    Where tools are only offered, text is as good as a call. Raises `ValueError` if there is none.
    """
    if item.task == "tool" and "offered" not in item.traits:
        return dlm.Tools(item.tools, choice="required", parallel=False)
    if item.tools:
        return dlm.Tools(item.tools)
    if item.task == "chat":
        raise ValueError("an answer in words without tools has no constraint")
    if item.task == "choice":
        return dlm.Choice((item.schema or {})["enum"])
    return dlm.JsonSchema(item.schema or True)


def request_of(item: Sample, spec: Spec | None, i: int, args: argparse.Namespace) -> dlm.Request:
    """Return the request of sample number `i`; without a `spec` it is not constrained."""
    return dlm.Request(
        messages=item.messages,
        tools=item.tools,
        constraint=spec,
        constrained=spec is not None,
        max_tokens=args.max_tokens,
        seed=args.seed * 1_000_003 + i,
        thinking=item.thought is not None,
    )


def wanted(item: Sample) -> Any:
    """Return a sample's value in the form in which `meaning` returns an answer's."""
    if item.task != "tool":
        return item.value
    calls = item.value if isinstance(item.value, list) else [item.value]
    return _called(calls)


def _called(calls: Sequence[tuple[str, Any]]) -> Any:
    named = [{name: arguments} for name, arguments in calls]
    return named[0] if len(named) == 1 else named


def meaning(
    result: dlm.Result, item: Sample, spec: Spec, vocabulary: Vocabulary
) -> tuple[bool, Any]:
    """Return whether an answer is valid as it stands, and its value.

    The value of a call is `{name: arguments}`, of several calls a list of these; calls are read by
    the constraint's own reader. The value of an answer in words is its text.
    """
    if isinstance(spec, dlm.Tools):
        try:
            answer = spec.read(result.token_ids, vocabulary)
        except InvalidValueError:
            return False, MISSING
        if calls := answer.tool_calls:
            return True, _called([(call.name, call.arguments) for call in calls])
        return spec.choice == "auto" and bool(answer.content), answer.content or MISSING
    if item.task == "choice":
        return result.text in (item.schema or {})["enum"], result.text.strip()
    return is_valid(result.text, item.schema or True), value_of(result.text)


def paired(free: list[bool], bound: list[bool]) -> str:
    """Return a note: the prompts that only one of the two got right, and a sign test of them."""
    lost = sum(f and not b for f, b in zip(free, bound, strict=True))
    won = sum(b and not f for f, b in zip(free, bound, strict=True))
    chance = stats.binomtest(won, lost + won).pvalue if lost + won else 1.0
    return f"exact only free {lost}, only constrained {won} (two-sided sign test: p = {chance:.2g})"


if __name__ == "__main__":
    main()
