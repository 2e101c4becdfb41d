"""Print the memory of a model by part, the slots that fit each GPU and the least time of a step.

It also says which operations have no kernel at the model's shapes: torch computes them on a GPU.

It needs the model's config alone and reads no weights.

    dlm plan --model DIR --slots 4 --context 8192 --kv fp8 --weights nvfp4
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dlm.cli.command_line import CommandParser, fail
from dlm.kernels.gpus import CARDS
from dlm.models import ModelError, plan
from dlm.models.adapting import obstacles
from dlm.models.json_files import read_json
from dlm.models.layouts import layout_of

MEMORIES = (24, 32, 96, 141)  # GB: RTX 4090, RTX 5090, RTX PRO 6000, H200

_MOST_SLOTS, _MOST_CONTEXT = 1_000_000, 2**31 - 1  # arithmetic beyond them is in no unit of a GPU


def main() -> None:
    parser = CommandParser(__doc__)
    add = parser.add_argument
    purpose = "A model directory, or its config.json."
    add("--model", required=True, metavar="DIR|FILE", help=purpose)
    add("--slots", type=int, default=8, metavar="N", help="How many requests run at once.")
    purpose = "The tokens of each request, prompt and answer together."
    add("--context", type=int, default=8192, metavar="T", help=purpose)
    purpose = "The type in which keys and values are stored."
    add("--kv", choices=("fp8", "bf16"), default="fp8", help=purpose)
    purpose = "The type of the experts' weights; all others are bf16."
    add("--weights", choices=("nvfp4", "bf16"), default="nvfp4", help=purpose)
    purpose = (
        "The bits of activations in products of experts in nvfp4. With 4, steps are those of GPUs "
        "that multiply four bits by four."
    )
    add("--activation-bits", type=int, choices=(16, 4), default=16, help=purpose)
    add("--json", action="store_true", help="Print one JSON object instead of tables.")
    args = parser.parse_args()
    for name, least, most in (("slots", 1, _MOST_SLOTS), ("context", 0, _MOST_CONTEXT)):
        if not least <= getattr(args, name) <= most:
            fail(f"--{name} must be from {least} to {most:,}, got {getattr(args, name)}")
    try:
        path = Path(args.model)
        if not path.exists():
            fail(f"there is no directory or file {path}")
        settings = read_json(path / "config.json" if path.is_dir() else path)
        layout = layout_of(settings)
        config = layout.config(settings)
        load = plan.Load(
            slots=args.slots,
            context=args.context,
            cache=args.kv,
            weights=args.weights,
            activation_bits=args.activation_bits,
        )
        model = layout.unfilled(config, load.weights)
        summary = report(model.costs, load) | {"by_torch": obstacles(model)}
    except ModelError as error:
        fail(str(error))
    if args.json:
        print(json.dumps(summary))
    else:
        show(summary)


def report(costs: plan.Costs, load: plan.Load) -> dict[str, Any]:
    """Return all figures: bytes, milliseconds and numbers of slots."""
    cards = [card for card in CARDS if load.activation_bits == 16 or card.four_bit is not None]
    return {
        "counted": "the text stack; a vision tower, which `--max-images 0` leaves out, is on top",
        "load": asdict(load),
        "parameters": costs.parameters(),
        "weights": costs.weight_bytes(),
        "cache_per_slot": plan.cache_bytes(costs.config, load.context, load.cache),
        "state_per_slot": costs.state_bytes(),
        "transient": costs.transient_bytes(load.slots),
        "total": plan.total_bytes(costs, load),
        "reserved": plan.RESERVED,
        "fits": {f"{gb} GB": plan.slots_within(costs, load, gb * 10**9) for gb in MEMORIES},
        "step": {card.name: plan.step_times(costs, load, card) for card in cards},
    }


def show(summary: dict[str, Any]) -> None:
    console, load = Console(width=100), summary["load"]
    console.print(
        f"Slots: {load['slots']}, of {load['context']:,} tokens each. Cache: {load['cache']}. "
        f"Experts: {load['weights']}, activations of {load['activation_bits']} bits. "
        f"Counted: {summary['counted']}.",
        highlight=False,
    )
    console.print(kernels_line(summary["by_torch"]), highlight=False, markup=False)
    memory = Table(title="Memory", title_justify="left")
    memory.add_column("part")
    memory.add_column("GB", justify="right")
    for part, size in summary["weights"].items():
        count = summary["parameters"][part] / 1e9
        memory.add_row(f"weights: {part}, {count:.2f} billion", gigabytes(size))
    count = sum(summary["parameters"].values()) / 1e9
    memory.add_row(
        f"weights: all, {count:.2f} billion", gigabytes(sum(summary["weights"].values()))
    )
    memory.add_row("cache of a slot", gigabytes(summary["cache_per_slot"]))
    memory.add_row("soft embedding and canvas of a slot", gigabytes(summary["state_per_slot"]))
    largest = max(summary["transient"], key=summary["transient"].__getitem__)
    memory.add_row(f"largest transient: {largest}", gigabytes(summary["transient"][largest]))
    memory.add_row("total", gigabytes(summary["total"]))
    console.print(memory)

    fits = Table(title="What fits", title_justify="left")
    for column in ("GPU", f"slots of {load['context']:,} tokens"):
        fits.add_column(column, justify="right")
    for memory_size, slots in summary["fits"].items():
        fits.add_row(memory_size, f"{slots:,}")
    console.print(fits)

    step = Table(title="Least milliseconds of a step: memory / arithmetic", title_justify="left")
    step.add_column("GPU")
    for part in next(iter(summary["step"].values())):
        step.add_column(part, justify="right")
    for gpu, parts in summary["step"].items():
        step.add_row(gpu, *(milliseconds(times) for times in parts.values()))
    console.print(step)


def kernels_line(by_torch: dict[str, str]) -> str:
    """Return what kernels do on a GPU, and why they leave operations to torch."""
    if not by_torch:
        return "On a GPU: kernels compute all operations, and passes are captured as CUDA graphs."
    reasons = "; ".join(f"{name}: {why}" for name, why in by_torch.items())
    return f"On a GPU: torch computes {reasons}. Passes are not captured as CUDA graphs."


def milliseconds(times: dict[str, float] | float) -> str:
    """Return the cell of a time: by memory and by arithmetic if it has both."""
    if isinstance(times, dict):
        return f"{times['memory']:.2f} / {times['arithmetic']:.2f}"
    return f"{times:.2f}"


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.3f}"
