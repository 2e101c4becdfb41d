"""Generate text, or JSON that a schema accepts, with a diffusion language model.

    python scripts/generate.py --schema examples/invoice.json "Extract ... as JSON. <text>"
    echo "..." | python scripts/generate.py --schema s.json --stats -

The result goes to stdout, everything else to stderr. Exit codes: 0 a valid result, 1 none could be
produced, 2 bad usage or a bad schema, 130 interrupted.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import dlm


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fail(2, message)


def main() -> None:
    try:
        args = arguments()
        schema = read_schema(args.schema)
        prompt = read_prompt(args.prompt)
        sys.exit(run(args, schema, prompt))
    except KeyboardInterrupt:
        fail(130, "interrupted")


def run(args: argparse.Namespace, schema: str | None, prompt: str) -> int:
    try:
        import dlm  # takes seconds: what is wrong with the arguments is told before
    except ModuleNotFoundError as error:
        fail(2, f"{error} for {sys.executable}: run `make install`, then use .venv/bin/python")

    try:
        constraint = None if schema is None else dlm.JsonSchema(schema)
        request = dlm.Request(
            prompt=prompt,
            constraint=None if args.no_constraint else constraint,
            max_tokens=args.max_tokens,
            seed=args.seed,
            thinking=args.thinking,
        )
        started = time.perf_counter()
        engine = dlm.Engine.load(args.model)
        loaded = time.perf_counter() - started
        engine.add(request)
    except (dlm.DlmError, dlm.GrammarError, dlm.ModelError) as error:
        fail(2, str(error))
    result = follow(engine, args)
    value, problem = judge(result, constraint, args)
    if args.json:
        print(json.dumps(report(result, value, loaded), ensure_ascii=False))
    else:
        print(result.text)
    if args.stats:
        print(summary(result, loaded), file=sys.stderr)
    if problem:
        fail(1, problem)
    return 0


def arguments() -> argparse.Namespace:
    parser = Parser(prog="generate.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("prompt", help="what the user says; - reads it from stdin")
    parser.add_argument("--schema", metavar="FILE|-|JSON", help="the JSON schema of the output")
    parser.add_argument("--model", metavar="DIR", help="a DiffusionGemma directory; built in: tiny")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-constraint", action="store_true", help="only check, at the end")
    parser.add_argument("--thinking", action="store_true", help="let the model reason first")
    parser.add_argument("--watch", action="store_true", help="show the canvas denoise")
    parser.add_argument("--stats", action="store_true", help="what it cost, to stderr")
    parser.add_argument("--json", action="store_true", help="result and statistics as one object")
    args = parser.parse_args()
    if args.prompt == args.schema == "-":
        fail(2, "prompt and --schema cannot both come from stdin")
    if args.no_constraint and args.schema is None:
        fail(2, "--no-constraint without --schema: there is no constraint to leave out")
    return args


def read_schema(source: str | None) -> str | None:
    """JSON text from a file, from stdin, or from the command line itself."""
    if source is None or source.lstrip()[:1] in ("{", "[") or source in ("true", "false"):
        return source
    return sys.stdin.read() if source == "-" else read_file(Path(source))


def read_prompt(source: str) -> str:
    return sys.stdin.read() if source == "-" else source


def read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        fail(2, f"cannot read the schema {path}: {reason}")


def follow(engine: "dlm.Engine", args: argparse.Namespace) -> "dlm.Result":
    """Run the request, showing on stderr what the user wants to see of it."""
    from canvas_view import canvas_view

    import dlm

    with canvas_view(engine.vocabulary, args.max_tokens, args.watch) as view:
        while engine.busy:
            for event in engine.step():
                if isinstance(event, dlm.Finished):
                    return event.result
                if isinstance(event, dlm.Failed):
                    fail(2 if isinstance(event.error, dlm.RequestError) else 1, str(event.error))
                view.show(event)
    raise RuntimeError("the engine ended a request without saying how")


def judge(
    result: "dlm.Result", constraint: "dlm.JsonSchema | None", args: argparse.Namespace
) -> tuple[Any, str | None]:
    """The value of the result, and what is wrong with it if anything is."""
    from dlm.grammar import InvalidValueError

    if constraint is None:
        return None, None
    if result.finish_reason == "length":
        return None, f"max_tokens {args.max_tokens} was reached before the JSON was complete"
    if not args.no_constraint:
        return result.parsed, None  # the engine has checked it
    try:
        return constraint.value(result.text), None
    except InvalidValueError as error:
        return None, str(error)


def report(result: "dlm.Result", value: Any, loaded: float) -> dict[str, Any]:
    stats = result.stats
    return {
        "text": result.text,
        "reasoning": result.reasoning,
        "parsed": value,
        "finish_reason": result.finish_reason,
        "usage": {
            "prompt_tokens": result.prompt_tokens,
            "completion_tokens": stats.tokens,
            "total_tokens": result.prompt_tokens + stats.tokens,
        },
        "denoiser_calls": stats.denoiser_calls,
        "tokens_per_call": round(stats.tokens_per_call, 3),
        "canvases": stats.canvases,
        "repairs": stats.repairs,
        "pins": stats.pins,
        "rollbacks": stats.rollbacks,
        "seconds": {k: round(v, 4) for k, v in {"load": loaded, **stats.seconds}.items()},
    }


def summary(result: "dlm.Result", loaded: float) -> str:
    stats = result.stats
    phases = ", ".join(f"{name} {spent:.3f}" for name, spent in stats.seconds.items())
    return (
        f"{stats.tokens} tokens in {stats.denoiser_calls} denoiser calls "
        f"({stats.tokens_per_call:.1f} a call), {stats.canvases} canvases, "
        f"{stats.repairs} repairs, {stats.pins} pins, {stats.rollbacks} rollbacks; "
        f"finish: {result.finish_reason}; seconds: load {loaded:.3f}, {phases}"
    )


def fail(code: int, message: str) -> NoReturn:
    """One line on stderr, and out."""
    print(f"generate.py: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
