"""Flags of constraints: one of several kinds, from a file, stdin or the command line itself."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlm.cli.command_line import UsageError

if TYPE_CHECKING:
    import dlm

_KINDS = ("schema", "regex", "choice", "grammar", "tools", "structural_tag")
_OF_SCHEMAS = ("additional_properties", "whitespace")  # options that only --schema takes
_BOM = "\ufeff"  # some editors begin a file with it


def add_options(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_mutually_exclusive_group()
    add = kinds.add_argument
    purpose = (
        "The answer is a value of this JSON schema: a file, - for stdin, or the schema itself."
    )
    add("--schema", metavar="FILE|-|JSON", help=purpose)
    purpose = "The whole answer matches this regular expression."
    add("--regex", metavar="PATTERN", help=purpose)
    purpose = "The answer is one of these words or phrases, with commas between them."
    add("--choice", metavar="A,B,...", help=purpose)
    purpose = "The answer is a sentence of this grammar: Lark if the name ends in .lark, else EBNF."
    add("--grammar", metavar="FILE|-", help=purpose)
    purpose = "The model may call these tools: a JSON list in OpenAI's form."
    add("--tools", metavar="FILE|-", help=purpose)
    purpose = "The answer is free text with constrained parts: a structural tag in xgrammar's form."
    add("--structural-tag", metavar="FILE|-", help=purpose)
    parser.add_argument(
        "--unenforced",
        choices=("check", "refuse"),
        default="check",
        help="What happens to keywords of a schema that no grammar enforces: the finished answer "
        "is checked, or the schema is refused.",
    )
    add = parser.add_argument
    purpose = (
        "Which properties an object of the schema has: closed, only those that the schema speaks "
        "of; schema, others too unless it forbids them. Default: closed."
    )
    add("--additional-properties", choices=("closed", "schema"), help=purpose)
    purpose = (
        "The white space between the parts of JSON: any, a little of the model's own; compact, "
        "none; pretty, a line for each part. Default: any."
    )
    add("--whitespace", choices=("any", "compact", "pretty"), help=purpose)


def kind_of(args: argparse.Namespace) -> str | None:
    """Return the kind of constraint that is given, or None."""
    return next((kind for kind in _KINDS if getattr(args, kind) is not None), None)


def read_source(args: argparse.Namespace) -> str | None:
    """Return the text of the constraint, or None if there is no constraint.

    The text comes from a file, from stdin or from the command line itself. Raises `UsageError`.
    """
    kind = kind_of(args)
    if kind != "schema" and (given := list(_schema_options(args))):
        raise UsageError(f"--{given[0].replace('_', '-')} without --schema: it is for JSON alone")
    if kind is None:
        return None
    source: str = getattr(args, kind)
    if kind in ("regex", "choice"):
        return source
    is_json = source.lstrip().startswith(("{", "[")) or source in ("true", "false")
    if kind == "schema" and is_json:
        return source
    what = f"the {kind.replace('_', ' ')}"
    if not source:
        raise UsageError(f"--{kind.replace('_', '-')} is empty: it takes a file, or - for stdin")
    if source == "-":
        return text_of(sys.stdin.buffer.read(), f"{what} from stdin").removeprefix(_BOM)
    try:
        return text_of(Path(source).read_bytes(), f"{what} {source}").removeprefix(_BOM)
    except OSError as error:
        raise UsageError(f"cannot read {what} {source}: {error.strerror}") from error


def _schema_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a schema that are given."""
    given = {name: getattr(args, name) for name in _OF_SCHEMAS}
    return {name: value for name, value in given.items() if value is not None}


def text_of(raw: bytes, what: str) -> str:
    """Decode UTF-8. `what` names the source in the `UsageError` that is raised otherwise."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        message = f"cannot read {what}: it is not UTF-8 text at byte {error.start}"
        raise UsageError(message) from error


def constraint_of(args: argparse.Namespace, source: str | None) -> "dlm.Spec | None":
    """Return the constraint of the text that `read_source` returned.

    Raises `dlm.InvalidGrammarError`.
    """
    import dlm  # slow, so after errors of the arguments
    from dlm.grammar.schema import plain

    if source is None:
        return None
    match kind_of(args):
        case "schema":
            more = _schema_options(args)
            return dlm.JsonSchema(source, unenforced=args.unenforced, **more)
        case "regex":
            return dlm.Regex(source)
        case "choice":
            return dlm.Choice([option.strip() for option in source.split(",")])
        case "grammar":
            return dlm.Grammar(source, "lark" if args.grammar.endswith(".lark") else "ebnf")
        case "tools":
            return dlm.Tools(plain("tools", source))
        case _:
            return dlm.StructuralTag(source)
