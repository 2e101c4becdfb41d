"""Time every kernel on this GPU, beside torch alone and beside what the GPU could do at best.

    python scripts/bench_kernels.py [--canvases N] [--json]
    python scripts/bench_kernels.py --offline --json

The best is the longer of two times: the bytes that have to be moved, at the rate of a copy, and the
operations, at the rate of a large bf16 product; both rates are measured first. Without a GPU there
is nothing to time; `--offline` compiles all kernels for GPUs that need not be there, tells what
each takes of one, and predicts times of some (`predicted.py`).
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from typing import Any, cast

import torch
import triton
from checkout import commit
from kernel_cases import OfflineCase, Sizes, cases
from predicted import predicted
from rich.console import Console
from rich.table import Table
from torch import Tensor

from dlm.kernels.offline import findings
from dlm.kernels.shipped import CASES, numbers_a_lane

_TOLD = ("target", "shared", "registers", "spills", "loop", "instructions", "error")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--canvases", type=int, default=1, metavar="N", help="of 256 rows each; 1")
    parser.add_argument("--offline", action="store_true", help="compile only; no GPU is needed")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.canvases < 1:
        parser.error(f"--canvases is {args.canvases}: it takes at least 1")
    if args.offline:
        found = compiled(Sizes(rows=256 * args.canvases))
        print(json.dumps(found)) if args.json else show_compiled(found)
        sys.exit(any("error" in kernel for kernel in found["kernels"]))
    if not torch.cuda.is_available():
        print(
            "bench_kernels.py: there is no CUDA device to time kernels on; --offline compiles them",
            file=sys.stderr,
        )
        sys.exit(2)
    found = measured(Sizes(rows=256 * args.canvases))
    print(json.dumps(found)) if args.json else show_measured(found)


def compiled(sizes: Sizes) -> dict[str, Any]:
    """Return what each kernel takes of a GPU in each shipped configuration, and predicted times.

    `a_number` is how many instructions of its loop a kernel takes for a weight or a logit.
    """
    found = dict(zip(CASES, findings(CASES), strict=True))
    kernels = []
    for (name, signature, _), kernel in found.items():
        row = {key: kernel[key] for key in _TOLD if key in kernel}
        numbers = numbers_a_lane(name, signature)
        if numbers and "loop" in kernel:
            row["a_number"] = kernel["loop"] / numbers
        kernels.append({"name": name, "configuration": signature, **row})
    return {"kernels": kernels, "predicted": predicted(found, sizes)}


def measured(sizes: Sizes) -> dict[str, Any]:
    """Times in microseconds, medians with a cold cache."""
    device = torch.device("cuda")
    bandwidth, rate = copy_rate(), product_rate()
    return {
        "device": torch.cuda.get_device_name(),
        "commit": commit(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "copy_bytes_per_second": bandwidth,
        "bf16_operations_per_second": rate,
        "kernels": [measure(case, bandwidth, rate) for case in cases(sizes, device)],
    }


def measure(case: OfflineCase, bandwidth: float, rate: float) -> dict[str, Any]:
    expected = case.reference().float()
    error = (case.run().float() - expected).abs().max() / expected.abs().max()
    best = 1e6 * max(case.moved / bandwidth, case.operations / rate)
    taken = microseconds(replayed(case.run))
    return {
        "name": case.name,
        "shape": case.shape,
        "kernel": taken,
        "torch": microseconds(case.composed),
        "best": best,
        "share_of_best": best / taken,
        "error": float(error),
    }


def replayed(run: Callable[[], Tensor]) -> Callable[[], None]:
    """`run` from a CUDA graph, as a step runs it: small kernels would wait for their launches."""
    run()  # compiles what is still to be
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def copy_rate() -> float:
    """Bytes read and written a second by a copy of a gigabyte."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2e6 * source.nbytes / microseconds(lambda: target.copy_(source))


def product_rate(size: int = 8192) -> float:
    """Operations a second of a square bf16 product."""
    a, b = torch.randn(2, size, size, device="cuda", dtype=torch.bfloat16)
    return 2e6 * size**3 / microseconds(lambda: a @ b)


def microseconds(run: Callable[[], Any]) -> float:
    times = triton.testing.do_bench(run, return_mode="all")  # milliseconds
    return 1e3 * statistics.median(cast(list[float], times))


def show_measured(found: dict[str, Any]) -> None:
    console = Console(width=120)
    console.print(
        f"{found['device']}, commit {found['commit']}, torch {found['torch']}, triton "
        f"{found['triton']}. A copy moves {found['copy_bytes_per_second'] / 1e12:.2f} TB/s, a bf16 "
        f"product computes {found['bf16_operations_per_second'] / 1e12:.0f} TFLOP/s.",
        highlight=False,
    )
    columns = ("kernel", "shape", "us", "torch, us", "best, us", "of best", "largest error")
    rows = [
        (
            each["name"],
            each["shape"],
            *(f"{each[key]:.1f}" for key in ("kernel", "torch", "best")),
            f"{each['share_of_best']:.0%}",
            f"{each['error']:.1e}",
        )
        for each in found["kernels"]
    ]
    console.print(table(columns, rows))


def show_compiled(found: dict[str, Any]) -> None:
    console = Console(width=140)
    rows = [
        (
            each["name"],
            *(str(each.get(key, "-")) for key in ("target", "shared", "registers", "spills")),
            f"{each['a_number']:.2f}" if "a_number" in each else "-",
            each.get("error") or " ".join(each["instructions"][:1]),
        )
        for each in found["kernels"]
    ]
    columns = ("kernel", "GPU", "shared", "registers", "spills", "a number", "instruction")
    console.print(table(columns, rows))
    times = "issue", "bytes", "operations", "predicted", "floor"
    rows = [
        (
            each["name"],
            each["shape"],
            f"{each['instructions_a_number']:.2f}",
            *(f"{each[key]:.1f}" for key in times),
            each["device"],
        )
        for each in found["predicted"]
    ]
    columns = "kernel", "shape", "a number", *(f"{key}, us" for key in times), "GPU"
    console.print(table(columns, rows))


def table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    """The last of `columns` and the first to the left, numbers to the right."""
    made = Table()
    for column in columns:
        made.add_column(column, justify="left" if column in (columns[0], columns[-1]) else "right")
    for row in rows:
        made.add_row(*row)
    return made


if __name__ == "__main__":
    main()
