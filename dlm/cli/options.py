"""Flags that commands share: engines, requests, and constraints.

A constraint is one of several kinds, and comes from a file, from stdin or from the command line
itself.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from dlm.cli.command_line import UsageError, flag_of
from dlm.writes import Writes

if TYPE_CHECKING:
    import dlm
    from dlm.loading import Loading

POLICIES = {"none": False, "data": "data", "all": True}
LIMITS = {  # of the policy
    "max_source_bytes": "The most bytes of the names, values and patterns of a schema, or of all "
    "tools together, or of a text. Default: 65536.",
    "max_depth": "The most levels of a schema, or brackets of a text within one another. "
    "Default: 64.",
    "max_options": "The most options of a choice. Default: 1000.",
    "max_tools": "The most tools of a request. Default: 128.",
    "max_images": "The most images of a request. 0 loads no vision tower. Default: 16.",
    "max_image_pixels": "The most pixels of an image. Default: 40000000.",
}
CUTS = ("top_k", "top_p", "min_p")
LOCAL_RAY = "local"  # as an address: a cluster that is made on this machine


def add_decoding(parser: argparse.ArgumentParser) -> None:
    purpose = (
        "How the model writes: canvas denoises whole canvases, left-to-right writes one token "
        "after another, drafted writes left to right from drafts of canvases. Default: as the "
        "model's config.json says, otherwise canvas."
    )
    parser.add_argument("--decoding", choices=get_args(Writes), help=purpose)


def add_engine_options(parser: argparse.ArgumentParser, slots: str, policy: str) -> None:
    """Add the flags of an engine. `slots` describes a slot; `policy` is the default policy."""
    add = parser.add_argument
    add_model(parser)
    purpose = (
        "The most tokens whose keys and values are stored, of all requests together. "
        "Default: as many as fit what a GPU has left; on the CPU there is no bound."
    )
    add("--cache-tokens", type=int, metavar="N", help=purpose)
    add("--slots", type=int, default=8, metavar="N", help=f"How many {slots}.")
    purpose = "Begin without warming up a GPU: first requests wait for kernels and captures."
    add("--no-warm-up", action="store_false", dest="warm_up", help=purpose)
    add_decoding(parser)
    purpose = (
        "Which constraints may be asked for: none, data (schemas, choices and tools), or all "
        "(regexes and grammars too)."
    )
    add("--policy", choices=POLICIES, default=policy, help=purpose)
    for limit, purpose in LIMITS.items():
        add(flag_of(limit), type=int, metavar="N", help=purpose)
    purpose = (
        "Ignore fields that have no effect here, such as penalties and logit_bias. Default: refuse "
        "them."
    )
    add("--ignore-unsupported", action="store_true", help=purpose)
    purpose = "The share of max_tokens that reasoning leaves to the answer. Default: 0.25."
    add("--answer-share", type=float, metavar="SHARE", help=purpose)
    purpose = "The hosts from which images may be fetched. Default: none; images are data URLs."
    add("--image-hosts", nargs="+", default=[], metavar="HOST", help=purpose)
    purpose = (
        "The names by which requests may ask for the model. Default: the name of its directory, or "
        "tiny."
    )
    add("--served-model-name", nargs="+", metavar="NAME", help=purpose)


def add_model(parser: argparse.ArgumentParser) -> None:
    purpose = "A model directory. Default: the built-in model, tiny, on the CPU."
    parser.add_argument("--model", metavar="DIR", help=purpose)
    purpose = (
        "The type in which keys and values are stored: fp8, bf16, fp16 or fp32; auto is the type "
        "in which they are computed."
    )
    parser.add_argument("--kv", default="auto", metavar="TYPE", help=purpose)
    purpose = (
        "The bits of activations in products with NVFP4 weights: 4 quantises them too, on GPUs of "
        "SM 10.0 and 12.0, by scales that the checkpoint must have."
    )
    parser.add_argument("--activation-bits", type=int, choices=(16, 4), default=16, help=purpose)
    purpose = "The threads of torch in a step on a CPU. Default: 1 for a small model or a GPU."
    parser.add_argument("--threads", type=int, metavar="N", help=purpose)


def add_asking(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a request other than its prompt."""
    add = parser.add_argument
    add("--system", metavar="TEXT", help="A system message that comes before the prompt.")
    purpose = (
        "How freely the answer is drawn, 0 to 2: 0 takes the likeliest token. "
        "Default: 1 on canvases, which is the model's own schedule; left to right 0, but 1 with "
        "--top-k, --top-p or --min-p."
    )
    add("--temperature", type=float, metavar="T", help=purpose)
    purpose = "Draw only from the K likeliest tokens at each position. Default: from all."
    add("--top-k", type=int, metavar="K", help=purpose)
    purpose = (
        "Draw only from the likeliest tokens whose probabilities come to P. Default: from all."
    )
    add("--top-p", type=float, metavar="P", help=purpose)
    purpose = "Draw only tokens that are at least P times as likely as the likeliest. Default: any."
    add("--min-p", type=float, metavar="P", help=purpose)


def given(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Return the options of these names that are given, as keyword arguments."""
    values = {name: getattr(args, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def add_ray(parser: argparse.ArgumentParser, purpose: str) -> None:
    parser.add_argument("--ray", nargs="?", const=LOCAL_RAY, metavar="ADDRESS", help=purpose)


def loading_of(args: argparse.Namespace) -> "Loading":
    """Return the settings of the engine that the flags ask for. Raises `DlmError` for the built-in
    model on another device than the CPU."""
    import dlm  # slow, so after errors of the arguments
    from dlm.loading import Loading

    if args.model is None and args.device not in (None, "cpu"):
        raise dlm.DlmError(
            f"device is {args.device!r}: the built-in model runs on the CPU; name another model"
        )
    hosts = frozenset(args.image_hosts)
    return Loading(
        model=args.model and str(Path(args.model).resolve()),
        device=args.device,
        slots=args.slots,
        policy=dlm.Policy.server(
            POLICIES[args.policy],
            image_hosts=hosts,
            ignore_unsupported=args.ignore_unsupported,
            **given(args, (*LIMITS, "answer_share")),
        ),
        kv=args.kv,
        activation_bits=args.activation_bits,
        cache_tokens=args.cache_tokens,
        decoding=args.decoding,
        threads=args.threads,
        warm_up=args.warm_up,
    )


def model_names(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the names by which requests may ask for the model."""
    own = Path(args.model).resolve().name if args.model else "tiny"
    return tuple(args.served_model_name or [own])


_KINDS = ("schema", "regex", "choice", "grammar", "tools", "structural_tag")
_OF_SCHEMAS = ("additional_properties", "whitespace")  # options that only --schema takes
_WITH_SCHEMAS = ("schema", "tools", "structural_tag")  # kinds with objects, which have an order
_BOM = "\ufeff"  # some editors begin a file with it


def add_constraint(parser: argparse.ArgumentParser) -> None:
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
    purpose = (
        "The order of an object's properties: required, those that are required come in the "
        "schema's order, and others anywhere; schema, all in the schema's order; any, all "
        "anywhere. Default: required, or any with --additional-properties schema."
    )
    add("--property-order", choices=("required", "schema", "any"), help=purpose)


def kind_of(args: argparse.Namespace) -> str | None:
    """Return the kind of constraint that is given, or None."""
    return next((kind for kind in _KINDS if getattr(args, kind) is not None), None)


def read_source(args: argparse.Namespace) -> str | None:
    """Return the text of the constraint, or None if there is no constraint.

    The text comes from a file, from stdin or from the command line itself. Raises `UsageError`.
    """
    kind = kind_of(args)
    if kind != "schema" and (unused := list(given(args, _OF_SCHEMAS))):
        raise UsageError(f"{flag_of(unused[0])} without --schema: it is for JSON alone")
    if kind not in _WITH_SCHEMAS and args.property_order is not None:
        raise UsageError(
            "--property-order must have --schema, --tools or --structural-tag beside it"
        )
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
        raise UsageError(f"{flag_of(kind)} must be a file, or - for stdin, got an empty text")
    if source == "-":
        return text_of(sys.stdin.buffer.read(), f"{what} from stdin").removeprefix(_BOM)
    try:
        return text_of(Path(source).read_bytes(), f"{what} {source}").removeprefix(_BOM)
    except OSError as error:
        raise UsageError(f"cannot read {what} {source}: {error.strerror}") from error


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
    order = given(args, ("property_order",))
    match kind_of(args):
        case "schema":
            options = given(args, _OF_SCHEMAS)
            return dlm.JsonSchema(source, unenforced=args.unenforced, **options, **order)
        case "regex":
            return dlm.Regex(source)
        case "choice":
            return dlm.Choice([option.strip() for option in source.split(",")])
        case "grammar":
            return dlm.Grammar(source, "lark" if args.grammar.endswith(".lark") else "ebnf")
        case "tools":
            return dlm.Tools(plain("tools", source), **order)
        case _:
            return dlm.StructuralTag(source, **order)
