"""Generate text, or what a schema, a regex, a grammar or tools accept, with a diffusion model.

    dlm generate --schema examples/invoice.json "Extract ... as JSON. <text>"
    echo "..." | dlm generate --choice yes,no --stats -

The result goes to stdout, everything else to stderr. JSON is indented on a terminal; in a pipe it
is as the model wrote it. Exit codes: 0 a valid result, 1 none could be produced or written, 2 bad
usage or a bad constraint, 130 interrupted, 143 terminated.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
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
from dlm.cli.display import canvas_view, status
from dlm.cli.options import (
    CUTS,
    add_asking,
    add_constraint,
    add_decoding,
    add_model,
    constraint_of,
    given,
    kind_of,
    read_source,
    text_of,
)

if TYPE_CHECKING:
    import dlm


def main() -> None:
    if sys.stdout is None:
        fail("stdout is closed: the result has no place to go", 1)
    open_streams()
    stop_at(signal.SIGINT, signal.SIGTERM)
    try:
        args = arguments()
        source, prompt = read_source(args), read_prompt(args.prompt)
        sys.exit(run(args, source, prompt))
    except UsageError as error:
        fail(str(error))
    except ModuleNotFoundError as error:
        fail(f"{error} for {sys.executable}: run `make install`, then use .venv/bin/python")
    except KeyboardInterrupt:
        fail("interrupted", 130)


def run(args: argparse.Namespace, source: str | None, prompt: str) -> int:
    """Answer the prompt under the constraint of `source`; return the exit code."""
    import dlm  # slow, so after errors of the arguments
    from dlm.batch.batch import prompt_arguments
    from dlm.loading import Loading

    try:
        constraint = constraint_of(args, source)
        request = dlm.Request(
            **with_images(prompt_arguments(args.system, prompt), args.image),
            constraint=None if args.no_constraint else constraint,
            constrained=not args.no_constraint,
            tools=getattr(constraint, "tools", ()),
            max_tokens=args.max_tokens,
            seed=args.seed,
            temperature=args.temperature,
            thinking=args.thinking,
            **given(args, CUTS),
        )
        started = time.perf_counter()
        with status("loading the model"):
            loading = Loading(
                policy=dlm.Policy(max_images=len(args.image)),
                model=args.model,
                slots=1,
                kv=args.kv,
                activation_bits=args.activation_bits,
                decoding=args.decoding,
                threads=args.threads,
                warm_up=False,  # it would take longer than this one request
            )
            engine = dlm.Engine.loaded(loading)
        loaded = time.perf_counter() - started
        engine.add(request)
    except dlm.DlmError as error:
        fail(str(error))
    try:
        interruptible()
        result = follow(engine, args)
    finally:
        engine.close()
    value, problem = judge(result, constraint, args)
    write(report(result, value, loaded, engine) if args.json else answer_of(result), args)
    if args.stats:
        print(summary(result, loaded, engine), file=sys.stderr)
    if problem:
        fail(problem, 1)
    return 0


def arguments() -> argparse.Namespace:
    parser = CommandParser(__doc__)
    add = parser.add_argument
    add("prompt", help="The user's message; - reads it from stdin.")
    purpose = "An image before the prompt, for a model that reads images; may be given repeatedly."
    add("--image", action="append", default=[], metavar="FILE", help=purpose)
    add_constraint(parser)
    add_model(parser)
    add("--max-tokens", type=int, default=256, metavar="N", help="The most tokens of the answer.")
    add_decoding(parser)
    add_asking(parser)
    purpose = "The seed of everything that is drawn at random."
    add("--seed", type=int, default=0, metavar="N", help=purpose)
    purpose = "Generate freely, and check the answer against the schema only at its end."
    add("--no-constraint", action="store_true", help=purpose)
    add("--thinking", action="store_true", help="Let the model reason before it answers.")
    add("--watch", action="store_true", help="Show the canvas on stderr while it is denoised.")
    add("--stats", action="store_true", help="Print what the answer cost to stderr.")
    purpose = "Print the answer and its statistics as one JSON object."
    add("--json", action="store_true", help=purpose)
    args = parser.parse_args()
    check_counts(args, "threads")
    args.kind = kind_of(args)
    if args.prompt == "-" and args.kind and getattr(args, args.kind) == "-":
        fail(f"prompt and {flag_of(args.kind)} cannot both come from stdin")
    if args.no_constraint and args.kind != "schema":
        fail("--no-constraint without --schema: there is nothing to check at the end")
    return args


def with_images(prompt: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a `Request` for a prompt, with the images of files before the user's
    text."""
    if not paths:
        return prompt
    from dlm.images import ImageFile

    parts: list[Any] = []
    for path in paths:
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            fail(f"the image {path} cannot be read: {error.strerror}")
        parts.append({"type": "image", "image": ImageFile(data, path)})
    *system, user = prompt.get("messages") or [{"role": "user", "content": prompt["prompt"]}]
    parts.append({"type": "text", "text": user["content"]})
    return {"messages": [*system, {**user, "content": parts}]}


def read_prompt(source: str) -> str:
    if source == "-":
        return text_of(sys.stdin.buffer.read(), "the prompt from stdin")
    return text_of(os.fsencode(source), "the prompt")


def follow(engine: "dlm.Engine", args: argparse.Namespace) -> "dlm.Result":
    """Run the request, showing its canvas or its progress on stderr."""
    import dlm

    with canvas_view(engine.vocabulary, args.max_tokens, args.watch) as view:
        while engine.busy:
            for event in engine.step():
                if isinstance(event, dlm.Finished):
                    return event.result
                if isinstance(event, dlm.Failed):
                    fail(str(event.error), 2 if isinstance(event.error, dlm.RequestError) else 1)
                view.show(event)
    raise RuntimeError("the engine ended a request without a result or an error")


_LESS = "but not all that the model would have written"


def judge(
    result: "dlm.Result", constraint: "dlm.Spec | None", args: argparse.Namespace
) -> tuple[Any, str | None]:
    """Return the value of the result, and the problem with it if there is one."""
    from dlm.grammar import InvalidValueError

    if constraint is None:
        return None, None
    what = "JSON" if args.kind == "schema" else "answer"
    if not result.complete:
        return None, f"max_tokens {args.max_tokens} was reached before the {what} was complete"
    if not args.no_constraint:  # the engine has checked it
        value = None if args.kind == "tools" else result.parsed
        if result.squeezed:
            return value, f"max_tokens {args.max_tokens} cut the {what} short: it is valid, {_LESS}"
        return value, None
    try:
        return constraint.value(result.text), None
    except InvalidValueError as error:
        return None, str(error)


def answer_of(result: "dlm.Result") -> str | list[Any]:
    """Return the calls of tools, or the text of the answer if there are none."""
    if result.tool_calls:
        return calls_of(result)
    return result.text


def calls_of(result: "dlm.Result") -> list[dict[str, Any]]:
    return [{"name": call.name, "arguments": call.arguments} for call in result.tool_calls]


def write(answer: str | list[Any] | dict[str, Any], args: argparse.Namespace) -> None:
    """Print the answer: JSON is indented on a terminal and unchanged elsewhere."""
    indent = 2 if sys.stdout.isatty() else None
    if isinstance(answer, str) and args.kind == "schema" and indent:
        try:
            answer = json.loads(answer)
        except (ValueError, RecursionError):
            indent = None  # Python cannot read it: it is printed as it is
    if not isinstance(answer, str):
        answer = json.dumps(answer, ensure_ascii=False, indent=indent)
    try:
        print(answer, flush=True)
    except UnicodeEncodeError as error:
        problem = f"stdout is {sys.stdout.encoding}, which has no {error.object[error.start]!a}"
        fail(f"cannot write the result: {problem}: set PYTHONIOENCODING=utf-8", 1)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to flush
        if isinstance(error, BrokenPipeError):
            sys.exit(1)  # the reader has closed the pipe, which needs no message
        fail(f"cannot write the result: {error.strerror}", 1)


def report(result: "dlm.Result", value: Any, loaded: float, engine: "dlm.Engine") -> dict[str, Any]:
    """Return the answer and its statistics, as `--json` prints them."""
    stats = result.stats
    return {
        "text": result.text,
        "reasoning": result.reasoning,
        "parsed": value,
        "tool_calls": calls_of(result),
        "finish_reason": result.finish_reason,
        "complete": result.complete,
        "squeezed": result.squeezed,
        "usage": {
            "prompt_tokens": result.prompt_tokens,
            "completion_tokens": stats.tokens,
            "total_tokens": result.prompt_tokens + stats.tokens,
        },
        "denoiser_calls": stats.denoiser_calls,
        "causal_calls": stats.causal_calls,
        "tokens_per_call": round(stats.tokens_per_call, 3),
        "canvases": stats.canvases,
        "repairs": stats.repairs,
        "pins": stats.pins,
        "rollbacks": stats.rollbacks,
        "decoding": engine.decoding.name,
        "backends": dict(engine.backends),
        "seconds": {k: round(v, 4) for k, v in {"load": loaded, **stats.seconds}.items()},
    }


def summary(result: "dlm.Result", loaded: float, engine: "dlm.Engine") -> str:
    """Return the line of statistics that `--stats` prints."""
    stats, backends = result.stats, engine.backends
    kernels = {name: backend for name, backend in backends.items() if name != "graphs"}
    computed = ", ".join(f"{name} by {backend}" for name, backend in kernels.items())
    computed += f"; passes {backends['graphs']}"
    phases = ", ".join(f"{name} {spent:.3f}" for name, spent in stats.seconds.items())
    return (
        f"{stats.tokens} tokens in {stats.calls} calls of the model "
        f"({stats.tokens_per_call:.1f} a call), {stats.canvases} canvases, "
        f"{stats.repairs} repairs, {stats.pins} pins, {stats.rollbacks} rollbacks; "
        f"finish: {result.finish_reason}{' (squeezed)' * result.squeezed}; "
        f"decoding: {engine.decoding.name}; {computed}; "
        f"seconds: load {loaded:.3f}, {phases}"
    )
