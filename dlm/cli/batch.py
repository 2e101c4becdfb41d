"""Extract from a file of texts, or answer a file of OpenAI's batch lines, all slots full.

    dlm batch --input rows.csv --schema s.json --output out.jsonl --column text
    dlm batch --input rows.jsonl --schema s.json --output out.jsonl \\
        --template "Extract name, age as JSON. {text}" --workers 2
    dlm batch --input requests.jsonl --output answers.jsonl     # custom_id, url, body

Answers are written in the order in which rows finish, unless --sorted is given. After a kill, the
same command continues with the missing rows. Exit codes: 0 all rows have answers, 1 some are
errors, 2 bad usage, 130 interrupted.
"""

import argparse
import hashlib
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from dlm.cli.command_line import (
    CommandParser,
    UsageError,
    check_counts,
    fail,
    flag_of,
    interruptible,
    open_streams,
    stop_at,
)
from dlm.cli.options import (
    CUTS,
    LOCAL_RAY,
    add_asking,
    add_constraint,
    add_engine_options,
    add_ray,
    constraint_of,
    given,
    kind_of,
    loading_of,
    model_names,
    read_source,
)

if TYPE_CHECKING:
    from rich.console import Console

    from dlm.batch.batch import AnswerForm, Batch, Ended, Output
    from dlm.batch.rows import Rest, Rows, Template

    Answer = Callable[[Rest], Iterator[Ended]]

LOG_SECONDS = 10.0  # between two lines about the progress
# Options of texts. OpenAI's lines have fields for them.
_OF_TEXTS = ("id", "max_tokens", "seed", "system", "temperature", *CUTS)
_AS_GIVEN = ("temperature", *CUTS)  # recorded as given: their defaults may depend on other options
# Further options that answers depend on.
_OF_ANSWERS = (
    *("column", "template", "unenforced", "additional_properties", "whitespace"),
    "property_order",
    *("kv", "decoding", "policy", "served_model_name"),
)


def main() -> None:
    open_streams()
    stop_at(signal.SIGINT)
    args = arguments()
    import dlm  # slow, so after errors of the arguments

    try:
        failed = run(args, read_source(args))
    except KeyboardInterrupt:
        fail("interrupted", 130)
    except (UsageError, dlm.DlmError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    sys.exit(1 if failed else 0)


def run(args: argparse.Namespace, source: str | None) -> int:
    """Answer all rows that have no answer yet; return the number of failed rows of all runs.

    Errors of the file and of the options are raised before a model is loaded.
    """
    from dlm.batch.batch import Output
    from dlm.batch.rows import Rest, rows_of
    from dlm.batch.table import write_table

    rows = rows_of(args.input.absolute())  # a worker on Ray has another directory
    form = form_of(args, rows, source)
    with closing(Output(args.output, settings(args, rows, form, source), form)) as output:
        total = min(sum(1 for _ in rows.read()), args.limit or sys.maxsize)
        try:
            if len(output.done & set(range(total))) < total:
                with answering(args, form) as answer:
                    follow(answer(Rest(rows.read, total, frozenset(output.done))), output, total)
        except BaseException:
            output.abandon()  # a model that is refused leaves no empty file
            raise
        if args.sorted:
            output.sort()
        if args.csv is not None:
            write_table(args.csv, output.in_order)
        if output.first_error is not None:
            row, problem = output.first_error
            print(f"the first error is that of row {row}: {problem:.500}", file=sys.stderr)
        print(f"{len(output.done)} rows, {output.failed} errors", file=sys.stderr)
        return output.failed


@contextmanager
def answering(args: argparse.Namespace, form: "AnswerForm") -> "Iterator[Answer]":
    """Provide what answers rows: an engine here, or the actors of a Ray cluster."""
    if args.ray is None and args.workers == 1:
        from dlm.batch.batch import answers

        with closing(batch_of(args, form)) as batch:
            interruptible()
            yield lambda rest: answers(rest(), batch)
        return
    from dlm.integrations.ray import joined
    from dlm.integrations.ray.batch import Actors, loaded

    interruptible()  # so that a cluster made here is shut down
    with joined(args.ray or LOCAL_RAY, args.workers) as cluster:
        loading, resources = cluster.places(loading_of(args), args.workers)
        ahead = _ahead(args)
        start = partial(loaded, loading, form, ahead)
        actors = Actors(
            start=start,
            form=form,
            count=args.workers,
            ahead=ahead,
            resources=resources,
            owner=cluster.owner,
        )
        yield actors.answers


def follow(ended: "Iterator[Ended]", output: "Output", total: int) -> None:
    """Write answers as they come, and show the progress: as a bar, or as lines of a log where
    stderr is no terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    done = sum(number < total for number in output.done)
    if console.is_terminal:
        _show(ended, output, done, total, console)
    else:
        _log(ended, output, done, total)


def _log(ended: "Iterator[Ended]", output: "Output", done: int, total: int) -> None:
    """Write answers, and a line about the progress every now and then. `done` rows have answers."""
    start = logged = perf_counter()
    for count, (_, answer) in enumerate(ended, 1):
        output.write(answer)
        now = perf_counter()
        if now - logged >= LOG_SECONDS:
            rate = f"{count / (now - start):.1f} rows/s, {output.failed} errors"
            print(f"{done + count} of {total} rows, {rate}", file=sys.stderr, flush=True)
            logged = now


def _show(
    ended: "Iterator[Ended]", output: "Output", done: int, total: int, console: "Console"
) -> None:
    """Write answers, and show the progress as a bar. `done` rows have answers."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        bar = progress.add_task("", total=total, completed=done, rate="")
        for _, answer in ended:
            output.write(answer)
            speed = progress.tasks[0].speed
            rate = "" if speed is None else f"{speed:.1f} rows/s, {output.failed} errors"
            progress.update(bar, advance=1, rate=rate)


def form_of(args: argparse.Namespace, rows: "Rows", source: str | None) -> "AnswerForm":
    """Return the form of the rows: OpenAI's lines, if they look so and no flag needs texts."""
    from dlm.batch.batch import Extraction
    from dlm.openai.batch import BatchLines, are_lines

    free = kind_of(args) is None and args.column is None and args.template is None
    if free and are_lines(rows):
        if unused := list(given(args, _OF_TEXTS)):
            flag = flag_of(unused[0])
            raise UsageError(f"{flag} with OpenAI's lines: each line has a field for it")
        if args.csv is not None:
            raise UsageError("--csv with OpenAI's lines: their answers are no tables")
        lines = BatchLines(model_names(args))
        lines.check(rows.read())
        return lines
    if args.served_model_name is not None:
        raise UsageError("--served-model-name takes OpenAI's lines: no other row names a model")
    if args.id is not None:
        rows.need(args.id)
    return Extraction(
        template=template_of(args, rows),
        constraint=constraint_of(args, source),
        max_tokens=256 if args.max_tokens is None else args.max_tokens,
        seed=args.seed or 0,
        system=args.system,
        cuts=given(args, CUTS),
        temperature=args.temperature,
        id=args.id,
    )


def template_of(args: argparse.Namespace, rows: "Rows") -> "Template":
    """Return the template of prompts. Raises `UsageError` for fields that no row has."""
    from dlm.batch.rows import InputError, Template

    if args.template is not None:
        template = Template.parse(args.template)
        for name in template.fields:
            try:
                rows.need(name)
            except InputError as error:
                raise UsageError(f"--template reads {{{name}}}: {error}") from error
        return template
    if args.column is not None:
        rows.need(args.column)
        return Template.column(args.column)
    return Template.column(rows.text_column())


def settings(
    args: argparse.Namespace, rows: "Rows", form: "AnswerForm", source: str | None
) -> dict[str, Any]:
    """Return the settings that answers depend on; answers of other settings are not mixed in."""
    constraint = source and f"{kind_of(args)} {hashlib.sha256(source.encode()).hexdigest()[:16]}"
    return {
        "input": rows.digest(),
        "constraint": constraint,
        "model": str(Path(args.model).resolve()) if args.model else "tiny (built in)",
        **{name: getattr(form, name, None) for name in _OF_TEXTS if name not in _AS_GIVEN},
        **{name: getattr(args, name) for name in _AS_GIVEN},
        **{name: getattr(args, name) for name in _OF_ANSWERS},
    }


def batch_of(args: argparse.Namespace, form: "AnswerForm") -> "Batch":
    """Return the batch of an engine in this process."""
    import dlm
    from dlm.batch.batch import Batch
    from dlm.cli.display import progress_bar
    from dlm.loading import tune_process

    with progress_bar("warming up") as progress:
        engine = dlm.Engine.loaded(loading_of(args), progress)
    tune_process()
    return Batch(engine, form, _ahead(args))


def _ahead(args: argparse.Namespace) -> int:
    """Return the number of rows an engine holds: those that run, and as many that compile."""
    return 2 * args.slots


def arguments() -> argparse.Namespace:
    parser = CommandParser(__doc__)
    add = parser.add_argument
    purpose = "The rows: a file whose name ends in .jsonl, .csv or .parquet."
    add("--input", type=Path, required=True, metavar="FILE", help=purpose)
    purpose = (
        "Where the answers go, as JSON lines. If it holds some already, the run goes on from them."
    )
    add("--output", type=Path, required=True, metavar="FILE", help=purpose)
    purpose = "Bring the lines of the output into the order of the input, once all are there."
    add("--sorted", action="store_true", help=purpose)
    purpose = "Write the answers as a table too, in the input's order: properties are its columns."
    add("--csv", type=Path, metavar="FILE", help=purpose)
    purpose = "The column that holds the prompt. Default: prompt, text, or the only one."
    add("--column", metavar="NAME", help=purpose)
    purpose = "The prompt of each row, with {NAME} where a field of the row goes."
    add("--template", metavar="TEXT", help=purpose)
    purpose = "A column whose value is copied into each answer, as its id."
    add("--id", metavar="NAME", help=purpose)
    add_constraint(parser)
    add_asking(parser)
    add("--max-tokens", type=int, metavar="N", help="The most tokens of an answer. Default: 256.")
    purpose = "The seed of the first row; each row after it has one more. Default: 0."
    add("--seed", type=int, metavar="N", help=purpose)
    add("--limit", type=int, metavar="N", help="Answer only the first N rows. Default: all.")
    purpose = "The number of engines. Several, or one with --ray, are actors of a Ray cluster."
    add("--workers", type=int, default=1, metavar="N", help=purpose)
    purpose = "The address of the Ray cluster. Without ADDRESS, one is made on this machine."
    add_ray(parser, purpose)
    add_engine_options(parser, "rows each engine answers at once", "all")
    purpose = "The device of the engines. Default: cuda if there is one, else cpu."
    add("--device", metavar="NAME", help=purpose)
    args = parser.parse_args()
    check_counts(args, "max_tokens", "limit", "workers", "slots", "threads")
    if args.seed is not None and not 0 <= args.seed < 2**63:
        fail(f"--seed must be 0 to 2**63 - 1, got {args.seed}")
    if args.column is not None and args.template is not None:
        fail("--column with --template: the template says which fields are read")
    if args.csv is not None:
        _check_table(args)
    return args


def _check_table(args: argparse.Namespace) -> None:
    """Refuse a table in a folder that does not exist, or in the place of another file."""
    from dlm.batch.rows import settings_path

    if not args.csv.absolute().parent.is_dir():
        fail(f"--csv must be in a folder that exists, got {args.csv}")
    taken = args.input, args.output, settings_path(args.output)
    if args.csv.resolve() in map(Path.resolve, taken):
        fail(f"--csv must be another file than the input, output and settings, got {args.csv}")
