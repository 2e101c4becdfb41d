"""Compare ways to decode: the same weights, prompts and schemas, in several modes.

    dlm compare --n 300 --out DIR

Writes DIR/results.jsonl (a line for each prompt in each mode), results.csv, report.html, and
quality.png. Stopped, the same command goes on where it was. `--study policies` and `--study
numbers` compare other policies and other settings of the engine. The prompts are extractions that
the built-in model was not trained on, or those of `--data FILE.jsonl`: {"prompt", "schema",
"expected"?} a line. The pictures need matplotlib and scipy.
"""

import argparse
import hashlib
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import dlm
from dlm.cli.command_line import CommandParser, check_counts, fail
from dlm.cli.compare.judging import Prompt, PromptError, built_in, read
from dlm.cli.compare.modes import STUDIES, Mode
from dlm.cli.compare.runs import Records, run_prompts

_SHOWN = ("valid", "complete", "exact", "passes", "tokens a pass", "ms")


def main(draw: Callable[[int, int], list[Prompt]] = built_in) -> None:
    """Run the command. `draw` makes the prompts, from their number and the seed."""
    args = arguments()
    try:
        from dlm.cli.compare.report import page, png, quality
    except ModuleNotFoundError as error:
        fail(f"{error} for {sys.executable}: pip install 'dlm[compare]'")
    torch.set_num_threads(args.threads)
    try:
        prompts = read(args.data, args.n) if args.data else draw(args.n or 300, args.seed)
        modes = chosen(STUDIES[args.study], args.modes)
        made_with = settings(args, prompts)
        with closing(Records(args.out, made_with)) as records:
            measure(records, modes, prompts, args)
    except (PromptError, dlm.DlmError, OSError) as error:
        fail(str(error), 1)
    table = {mode.name: records.of(mode.name) for mode in modes}
    python = "python " * sys.argv[0].endswith(".py")
    text = page(table, modes, made_with, f"{python}{' '.join(sys.argv)}")
    (args.out / "report.html").write_text(text, encoding="utf-8")
    records.write_csv(args.out / "results.csv")
    if any(run.exact is not None for run in records.runs):
        png(quality(table), args.out / "quality.png")
    show(table)


def arguments() -> argparse.Namespace:
    parser = CommandParser(__doc__)
    add = parser.add_argument
    purpose = "The folder of the results. If it holds some already, the run goes on from them."
    add("--out", type=Path, required=True, metavar="DIR", help=purpose)
    purpose = "How many prompts are answered. Default: 300, or all of the file."
    add("--n", type=int, metavar="N", help=purpose)
    purpose = "The modes that are compared: ways to decode, policies, or settings."
    add("--study", choices=STUDIES, default="decodings", help=purpose)
    add("--modes", metavar="NAME,NAME", help="Some modes of the study. Default: all.")
    purpose = "A DiffusionGemma directory. Default: the built-in model, tiny."
    add("--model", metavar="DIR", help=purpose)
    purpose = "A file of prompts with their schemas, one a line. Default: the built-in prompts."
    add("--data", type=Path, metavar="FILE.jsonl", help=purpose)
    purpose = "The most tokens of an answer."
    add("--max-tokens", type=int, default=160, metavar="N", help=purpose)
    purpose = "The seed of the generations, and of prompts that are drawn."
    add("--seed", type=int, default=0, metavar="N", help=purpose)
    add("--threads", type=int, default=1, metavar="N", help="How many threads torch uses.")
    args = parser.parse_args()
    check_counts(args, "n", "max_tokens", "threads")
    if args.out.exists() and not args.out.is_dir():
        fail(f"--out {args.out} is a file: it takes a folder")
    return args


def chosen(modes: tuple[Mode, ...], names: str | None) -> list[Mode]:
    """Return the modes of a study that `names` lists, in the study's order; all if it is None."""
    if names is None:
        return list(modes)
    known = {mode.name: mode for mode in modes}
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in known:
            raise PromptError(f"no mode is named {name!r}: there are {', '.join(known)}")
    return [mode for mode in modes if mode.name in wanted]


def settings(args: argparse.Namespace, prompts: list[Prompt]) -> dict[str, str | int]:
    """Return the settings that runs depend on; runs of other settings are not mixed in."""
    digest = hashlib.sha256(repr(prompts).encode()).hexdigest()[:16]
    return {
        "study": args.study,
        "model": args.model or "tiny (built in)",
        "max_tokens": args.max_tokens,
        "seed": args.seed,
        "prompts": f"{len(prompts)}, {digest}",
    }


def measure(
    records: Records, modes: list[Mode], prompts: list[Prompt], args: argparse.Namespace
) -> None:
    """Run all prompts in all modes, but for the runs that are on disk already."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        for mode in modes:
            done = records.done(mode.name)
            left = [prompt for prompt in prompts if prompt.id not in done]
            bar = progress.add_task(mode.name, total=len(prompts), completed=len(done))
            if not left:
                continue
            for run in run_prompts(mode, left, args.model, args.max_tokens, args.seed):
                records.add(run)
                progress.advance(bar)


def show(table: dict[str, list]) -> None:
    from dlm.cli.compare.report import cells

    shown = Table("mode", *_SHOWN)
    for name, each in table.items():
        row = cells(each)
        shown.add_row(name, *(row[column].partition(" [")[0] for column in _SHOWN))
    Console(width=120).print(shown)
