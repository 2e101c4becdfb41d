"""Compare ways to decode: the same weights, prompts and schemas, in several modes.

    python scripts/compare.py --n 300 --out DIR

Writes DIR/results.jsonl (a line for each prompt in each mode), results.csv, report.html, and
quality.png. Stopped, the same command goes on where it was. `--study policies` and `--study
numbers` compare what the engine could do otherwise. Prompts are the built-in model's held-out ones,
or those of `--data FILE.jsonl`: {"prompt", "schema", "expected"?} a line.
"""

import argparse
import hashlib
import sys
from contextlib import closing
from pathlib import Path

import torch
from comparison.modes import STUDIES, Mode
from comparison.plots import png, quality
from comparison.records import Records
from comparison.report import COLUMNS, cells, page
from comparison.runs import runs
from comparison.tasks import Task, TaskError, built_in, read
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import dlm

_SHOWN = ("valid", "complete", "exact", "passes", "tokens a pass", "ms")


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    try:
        tasks = read(args.data, args.n) if args.data else built_in(args.n or 300, args.seed)
        modes = chosen(STUDIES[args.study], args.modes)
        made_with = settings(args, tasks)
        with closing(Records(args.out, made_with)) as records:
            measure(records, modes, tasks, args)
    except (TaskError, dlm.DlmError, OSError) as error:
        sys.exit(f"compare.py: {error}")
    table = {mode.name: records.of(mode.name) for mode in modes}
    command = f"python scripts/compare.py {' '.join(sys.argv[1:])}"
    text = page(table, modes, made_with, command)
    (args.out / "report.html").write_text(text, encoding="utf-8")
    records.write_csv(args.out / "results.csv")
    if any(run.exact is not None for run in records.runs):
        png(quality(table), args.out / "quality.png")
    show(table)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--n", type=int, metavar="N", help="prompts; default: 300, or the file's")
    parser.add_argument("--study", choices=STUDIES, default="decodings")
    parser.add_argument("--modes", metavar="NAME,NAME", help="of the study; default: all")
    parser.add_argument("--model", metavar="DIR", help="built in: tiny")
    parser.add_argument("--data", type=Path, metavar="FILE.jsonl")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0, help="of the prompts and the generations")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    args = parser.parse_args()
    for name in ("n", "max_tokens", "threads"):
        if (value := getattr(args, name)) is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} is {value}: it takes at least 1")
    if args.out.exists() and not args.out.is_dir():
        parser.error(f"--out {args.out} is a file: it takes a folder")
    return args


def chosen(modes: tuple[Mode, ...], names: str | None) -> list[Mode]:
    """The modes of a study that are asked for, the reference first."""
    if names is None:
        return list(modes)
    known = {mode.name: mode for mode in modes}
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in known:
            raise TaskError(f"no mode is named {name!r}: there are {', '.join(known)}")
    return [mode for mode in modes if mode.name in wanted]


def settings(args: argparse.Namespace, tasks: list[Task]) -> dict[str, str | int]:
    """What runs depend on: those of other settings are not mixed with these."""
    prompts = hashlib.sha256(repr(tasks).encode()).hexdigest()[:16]
    return {
        "study": args.study,
        "model": args.model or "tiny (built in)",
        "max_tokens": args.max_tokens,
        "seed": args.seed,
        "prompts": f"{len(tasks)}, {prompts}",
    }


def measure(
    records: Records, modes: list[Mode], tasks: list[Task], args: argparse.Namespace
) -> None:
    """All runs that are not on disk yet."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        for mode in modes:
            done = records.done(mode.name)
            left = [task for task in tasks if task.id not in done]
            bar = progress.add_task(mode.name, total=len(tasks), completed=len(done))
            if not left:
                continue
            for run in runs(mode, left, args.model, args.max_tokens, args.seed):
                records.add(run)
                progress.advance(bar)


def show(table: dict[str, list]) -> None:
    shown = Table("mode", *_SHOWN)
    for name, each in table.items():
        row = dict(zip(COLUMNS, cells(each), strict=True))
        shown.add_row(name, *(row[column].partition(" [")[0] for column in _SHOWN))
    Console(width=120).print(shown)


if __name__ == "__main__":
    main()
