"""The engines that a command line asks for: which model, where, and under which policy."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlm.loading import Loading

POLICIES = {"none": False, "data": "data", "all": True}
DECODINGS = ("canvas", "drafted", "left-to-right")
LIMITS = {  # of the policy, and what its default is
    "max_source_bytes": "names, values and patterns of a schema, or of all tools, or a text; 65536",
    "max_depth": "levels of a schema, or brackets of a text; 64",
    "max_options": "of a choice; 1000",
    "max_tools": "of a request; 128",
}
LOCAL_RAY = "local"  # as an address: a cluster that is made on this machine


def add_decoding(parser: argparse.ArgumentParser) -> None:
    purpose = "in canvases, or by the causal half, which canvases may draft for; canvas"
    parser.add_argument("--decoding", choices=DECODINGS, default="canvas", help=purpose)


def add_engine_options(parser: argparse.ArgumentParser, slots: str, policy: str) -> None:
    """`slots` says what takes a slot; `policy` is the default."""
    add = parser.add_argument
    add("--model", metavar="DIR", help="a DiffusionGemma directory; built in: tiny, on the CPU")
    add("--kv", default="auto", help="keys and values: fp8, bf16, fp16 or fp32")
    add("--cache-tokens", type=int, metavar="N", help="of all together; all that a GPU has left")
    add("--slots", type=int, default=8, metavar="N", help=f"{slots}; 8")
    add_decoding(parser)
    purpose = f"constraints that are served; {policy}"
    add("--policy", choices=POLICIES, default=policy, help=purpose)
    for limit, purpose in LIMITS.items():
        add(f"--{limit.replace('_', '-')}", type=int, metavar="N", help=purpose)
    add("--served-model-name", nargs="+", metavar="NAME", help="the directory's name")


def add_ray(parser: argparse.ArgumentParser, purpose: str) -> None:
    parser.add_argument("--ray", nargs="?", const=LOCAL_RAY, metavar="ADDRESS", help=purpose)


def loading_of(args: argparse.Namespace) -> "Loading":
    import dlm  # what is wrong with the arguments is told before
    from dlm.loading import Loading

    limits = {name: found for name in LIMITS if (found := getattr(args, name)) is not None}
    return Loading(
        model=args.model and str(Path(args.model).resolve()),
        device=args.device,
        slots=args.slots,
        policy=dlm.Policy.server(POLICIES[args.policy], **limits),
        kv=args.kv,
        cache_tokens=args.cache_tokens,
        writes=args.decoding,
    )


def model_names(args: argparse.Namespace) -> tuple[str, ...]:
    """Those that requests may ask for."""
    own = Path(args.model).resolve().name if args.model else "tiny"
    return tuple(args.served_model_name or [own])
