"""Answer tasks in several modes, judge the answers, and compare the modes.

    python scripts/evaluate.py compare --out DIR
    python scripts/evaluate.py compare --study policies --prompts 150 --out DIR
    python scripts/evaluate.py exams --prompts 500 --only patterns
    python scripts/evaluate.py kinds --prompts 300

`compare` has extractions that the built-in model was not trained on, or the prompts of `--data
FILE.jsonl`: {"prompt", "schema", "expected"?} a line. They are answered one after the other, so
that a task's time is its own.

`exams` has sentences of trained patterns and of held-out ones, all with values that no training
sample has; texts that also mention other values; lists and nested objects; strings of random
letters; tool calls; words to choose; sentences by other authors; sentences whose keys only the
schema names; calls of made-up tools that are only offered, answers after their results, requests
that need none.

The study `masked` is one of models with masked canvases (`scripts/train_masked.py`): orders in
which positions are revealed, and drafts that are verified in the same pass or in one of their own.
Drafted answers have to equal those without drafts.

`kinds` constrains extractions by their JSON schema or to any JSON object, tool calls by the tools'
parameters, words by choice, regex and grammar.

"exact" and "fields" (the share of wanted values that are right) ignore a code fence around JSON;
"valid" does not. With `--out DIR` every answer is kept: DIR/results.jsonl has a line for each task
in each mode, results.csv the same, report.html tables with intervals, pairs and pictures, and
quality.png a picture. Stopped, the same command goes on where it was.
"""

import argparse
import hashlib
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from measure.options import MeasureParser
from measure.report import print_table
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import dlm
from dlm.cli.command_line import fail
from dlm.models import ModelError
from evaluation.modes import STUDIES, Mode
from evaluation.report import Table, figures, page, pairs, png, quality, table_rows, text_of
from evaluation.runs import EvaluationSettings, Records, run_tasks
from evaluation.tasks import EvaluationTask, TaskError, exam_tasks, extractions, kind_tasks, read

_SHOWN = "valid", "cut", "exact", "fields", "text", "passes", "tokens a pass", "ms"
# Of each command: its study, the number of prompts (of each set, for exams), and of slots.
_DEFAULTS = {
    "compare": ("decodings", 300, 1),
    "exams": ("exams", 200, 8),
    "kinds": ("constraint", 300, 8),
}


def main(command: str) -> None:
    args = arguments(command)
    torch.set_num_threads(args.threads)
    try:
        tasks = tasks_of(command, args)
        modes = chosen(STUDIES[args.study], args.modes)
        made_with = settings(args, tasks)
        with closing(Records(args.out, made_with)) as records:
            measure(records, modes, tasks, args)
    except (TaskError, dlm.DlmError, ModelError, OSError) as error:
        fail(str(error))
    table = {mode.name: records.of(mode.name) for mode in modes}
    if args.out is not None:
        text = page(table, modes, made_with, f"python {' '.join(sys.argv)}")
        (args.out / "report.html").write_text(text, encoding="utf-8")
        records.write_csv(args.out / "results.csv")
        if any(run.exact is not None for run in records.runs):
            png(quality(table), args.out / "quality.png")
    show(table, modes, args.json)
    if unequal := differing(table, modes):
        fail(f"answers differ from those they must equal: {', '.join(unequal)}")


def differing(table: Table, modes: list[Mode]) -> list[str]:
    """Return modes, with numbers of tasks, whose answers are not those of the mode they equal."""
    unequal = []
    for mode in modes:
        expected = {run.task_id: (run.text, run.tokens) for run in table.get(mode.equals or "", ())}
        tasks = [
            run.task_id
            for run in table[mode.name]
            if expected.get(run.task_id, (run.text, run.tokens)) != (run.text, run.tokens)
        ]
        if tasks:
            unequal.append(f"{mode.name!r} in tasks {', '.join(map(str, tasks[:8]))}")
    return unequal


def show(table: Table, modes: list[Mode], as_json: bool) -> None:
    """Print the figures of each group in each mode, and the pairs of modes."""
    rows = [(group, mode, len(runs), figures(runs)) for group, mode, runs in table_rows(table)]
    if as_json:
        for group, mode, count, row in rows:
            print(json.dumps({"group": group, "mode": mode, "tasks": count, **row}))
        return
    cells = (
        (f"{group} ({count})", mode, *(text_of(row[name]) for name in _SHOWN))
        for group, mode, count, row in rows
    )
    print_table(("tasks", "mode", *_SHOWN), cells, left=("mode",), width=140)
    for pair in pairs(table, modes):
        only = f"only {pair.one} {pair.only_one}, only {pair.other} {pair.only_other}"
        print(f"{pair.group}, right: {only} (two-sided sign test: p = {pair.p:.2g})")


def arguments(command: str) -> argparse.Namespace:
    study, prompts, slots = _DEFAULTS[command]
    parser = MeasureParser(__doc__, "model", "seed", "json")
    add = parser.add_argument
    purpose = "The folder of the results. If it holds some already, the run goes on from them."
    add("--out", type=Path, metavar="DIR", help=purpose)
    each = " of each set" * (command == "exams")
    parser.add_count("--prompts", prompts, f"The number of prompts{each}.")
    purpose = "The modes that are compared: ways to decode, policies, settings, or the constraint."
    add("--study", choices=STUDIES, default=study, help=purpose)
    add("--modes", metavar="NAME,NAME", help="Some modes of the study. Default: all.")
    if command == "compare":
        purpose = "A file of prompts with their schemas, one a line. Default: extractions."
        add("--data", type=Path, metavar="FILE.jsonl", help=purpose)
    else:
        purpose = "Answer only the sets whose name contains one of the names."
        add("--only", nargs="+", metavar="NAME", default=[""], help=purpose)
    parser.add_count("--max-tokens", 160, "The most tokens of an answer.")
    parser.add_count("--slots", slots, "The prompts that are answered at once.")
    purpose = "The type in which keys and values are stored: auto, fp8, bf16, fp16 or fp32."
    add("--kv", default="auto", metavar="TYPE", help=purpose)
    parser.add_count("--threads", 1, "The threads that torch uses.")
    args = parser.parsed()
    if args.out is not None and args.out.exists() and not args.out.is_dir():
        fail(f"--out must be a folder, got the file {args.out}")
    return args


def tasks_of(command: str, args: argparse.Namespace) -> list[EvaluationTask]:
    """Return the tasks of a command. Raises `TaskError`."""
    if command == "exams":
        return exam_tasks(args.prompts, args.seed, args.only)
    if command == "kinds":
        return kind_tasks(args.prompts, args.seed, args.only)
    if args.data is not None:
        return read(args.data, args.prompts, args.seed)
    return extractions(args.prompts, args.seed)


def chosen(modes: tuple[Mode, ...], names: str | None) -> list[Mode]:
    """Return the modes of a study that `names` lists, in the study's order; all if it is None."""
    if names is None:
        return list(modes)
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if all(name != mode.name for mode in modes):
            known = ", ".join(mode.name for mode in modes)
            raise TaskError(f"no mode is named {name!r}: there are {known}")
    return [mode for mode in modes if mode.name in wanted]


def settings(args: argparse.Namespace, tasks: list[EvaluationTask]) -> dict[str, Any]:
    """Return the settings that runs depend on; runs of other settings are not mixed in."""
    contents = [(task.id, task.item.messages, task.item.schema, task.item.value) for task in tasks]
    digest = hashlib.sha256(repr(contents).encode()).hexdigest()
    return {
        "study": args.study,
        "model": args.model or "tiny (built in)",
        "kv": args.kv,
        "slots": args.slots,
        "max_tokens": args.max_tokens,
        "seed": args.seed,
        "prompts": f"{len(tasks)}, {digest[:16]}",
    }


def measure(
    records: Records, modes: list[Mode], tasks: list[EvaluationTask], args: argparse.Namespace
) -> None:
    """Run all tasks in all modes, but for the runs that are on disk already."""
    engines = EvaluationSettings(
        model=args.model, kv=args.kv, slots=args.slots, max_tokens=args.max_tokens
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        for mode in modes:
            done = records.done(mode.name)
            undone = [task for task in tasks if task.id not in done]
            bar = progress.add_task(mode.name, total=len(tasks), completed=len(done))
            if not undone:
                continue
            for run in run_tasks(mode, undone, engines):
                records.add(run)
                progress.advance(bar)
