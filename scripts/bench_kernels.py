"""Time every kernel on this GPU, beside torch alone and beside the least time that is possible.

    python scripts/bench_kernels.py [--canvases N] [--json]
    python scripts/bench_kernels.py --configurations [--canvases N]
    python scripts/bench_kernels.py --offline --json
    python scripts/bench_kernels.py --small      # references on a CPU, to try the script itself

`--beside` is the output of an earlier run with `--json`; each time's change since then is shown.

The least time is the longer of two: that of moving the kernel's bytes, at the rate of a copy, and
that of its operations, at the rate of a large bf16 product; both rates are measured first.

`--configurations` times every candidate of each kernel that has several instead, at the shapes of
`--config`, and marks the one that its rule chooses (`kernels/configurations.py`). A candidate that
this GPU cannot run has no time.

`--offline` needs no GPU. It compiles all kernels for several GPUs, prints the resources that each
kernel takes, and predicts times of the kernels that decode four bits and of the vocabulary pass's
first kernel. A prediction is the longest of three times: the instructions of the kernel's loop,
times iterations, programs and warps, over four a clock of each processor; the bytes, over the
bandwidth; the operations of matrices, over the rate of dense bf16 products. The last two are the
floor, below which no kernel gets. Waiting is left out. On an H100 with 256 tokens of the 26B, gate
and up took 147 us where 97 are predicted, down 80 where 52 are, and the vocabulary pass, of two
kernels, 70 where 52 are predicted for the first: 1.3 to 1.5 times as long. W4A16 and the other
GPUs were not measured.
"""

import json
import statistics
import sys
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import triton
from measure.checkout import commit
from measure.configurations import configuration_cases
from measure.kernel_cases import KernelCase, Sizes, cases
from measure.options import MeasureParser
from measure.report import (
    ResultForm,
    add_beside,
    add_out,
    compare,
    earlier_of,
    print_table,
    show_settings,
    with_change,
    write_result,
)
from triton.runtime.errors import TritonError

from dlm.kernels.configurations import DOWN, GATE_UP, W4A16
from dlm.kernels.gpus import CARDS, Card, Target, card_name
from dlm.kernels.offline import CASES, OfflineCase, findings, numbers_a_lane, read, tile
from dlm.models import ModelConfig, ModelError
from dlm.models.decoder import DecoderConfig
from dlm.models.json_files import read_json
from dlm.models.layouts import layout_of

RESULTS = ResultForm(
    script="bench_kernels.py",
    rows="kernels",
    key=("name", "shape"),
    figures=("kernel", "torch"),
    settings=("device", "torch", "triton"),
)
SMALL = Sizes(
    rows=24,
    canvas=8,
    context=70,
    window=50,
    vocab=512,
    hidden=128,
    dense=192,
    expert=64,
    experts=4,
    chosen=2,
    heads=4,
    sliding=(2, 32),
    full=(1, 64),
    plain_canvas=8,
    plain_heads=8,
    plain=(2, 32),
    groups=(2, 1),
)
BIG = Path(__file__).parent.parent / "examples" / "diffusiongemma-26b-a4b.json"
_CONTEXT = 8192  # tokens before each canvas, for attention
_SHOWN = ("target", "shared", "registers", "spills", "loop", "instructions", "error")


def main() -> None:
    parser = MeasureParser(__doc__, "json")
    parser.add_count("--canvases", 1, "The canvases of 256 rows each.")
    purpose = "Compile only, which needs no GPU."
    parser.add_argument("--offline", action="store_true", help=purpose)
    purpose = "Run the references on the CPU at small sizes, instead of kernels on a GPU."
    parser.add_argument("--small", action="store_true", help=purpose)
    purpose = "Time the candidates of each kernel that has several configurations."
    parser.add_argument("--configurations", action="store_true", help=purpose)
    purpose = "With --configurations: the config.json of a model. Default: DiffusionGemma 26B's."
    parser.add_argument("--config", type=Path, default=BIG, metavar="FILE", help=purpose)
    add_beside(parser)
    add_out(parser)
    args = parser.parsed()
    if args.offline:
        if args.beside is not None:
            parser.error("--beside compares measured times, and --offline measures none")
        found = compiled(Sizes(rows=256 * args.canvases))
        print(json.dumps(found)) if args.json else show_compiled(found)
        sys.exit(any("error" in kernel for kernel in found["kernels"]))
    if not (args.small or torch.cuda.is_available()):
        parser.error("there is no CUDA device to time kernels on; --offline compiles them")
    if args.configurations:
        if args.small or args.beside is not None:
            parser.error("--configurations takes neither --small nor --beside")
        try:
            settings = read_json(args.config)
            config = layout_of(settings).config(settings)
        except ModelError as error:
            parser.error(str(error))
        timer = Timer(torch.device("cuda"))
        rows = [*timed_configurations(config, args.canvases, timer)]
        write_result(args.out, found := {**setting(timer.device), "configurations": rows})
        print(json.dumps(found)) if args.json else show_configurations(found)
        return
    try:
        earlier = earlier_of(args, RESULTS)
    except ValueError as error:
        parser.error(str(error))
    sizes = SMALL if args.small else Sizes(rows=256 * args.canvases)
    found = measured(sizes, Timer(torch.device("cpu" if args.small else "cuda")), args.out)
    compare(found, earlier, RESULTS)
    write_result(args.out, found)
    print(json.dumps(found)) if args.json else show_measured(found)


def compiled(sizes: Sizes, shipped: Sequence[OfflineCase] = CASES) -> dict[str, Any]:
    """Return the resources of each kernel in each `shipped` configuration, and predicted times.

    `a_number` is the number of instructions of a kernel's loop for each weight or logit.
    """
    found = dict(zip(shipped, findings(shipped), strict=True))
    kernels = []
    for (name, signature, _), kernel in found.items():
        row = {key: kernel[key] for key in _SHOWN if key in kernel}
        numbers = numbers_a_lane(name, signature)
        if numbers and "loop" in kernel:
            row["a_number"] = kernel["loop"] / numbers
        kernels.append({"name": name, "configuration": signature, **row})
    return {"kernels": kernels, "predicted": predicted(found, sizes)}


@dataclass(frozen=True, slots=True)
class Timer:
    """A clock for launches on a device."""

    device: torch.device

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def microseconds(self, run: Callable[[], Any]) -> float:
        """Return the median time of a run: on a GPU with a cold cache, else of three runs."""
        if self.on_gpu:
            times = triton.testing.do_bench(run, return_mode="all")  # milliseconds
            return 1e3 * statistics.median(cast(list[float], times))
        return 1e6 * statistics.median(timeit.repeat(run, number=1, repeat=3))

    def of_kernel(self, run: Callable[[], Any]) -> float:
        """Return the time of a kernel, without that of its launch."""
        return self.microseconds(replayed(run) if self.on_gpu else run)


def replayed(run: Callable[[], Any]) -> Callable[[], None]:
    """Return `run` as a CUDA graph, as in a step: small kernels would wait for their launches."""
    run()  # compiles the kernel
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def timed_configurations(
    config: ModelConfig | DecoderConfig, canvases: int, timer: Timer
) -> Iterator[dict[str, Any]]:
    """Yield a row for each candidate of each kernel, with its microseconds; None if this GPU cannot
    run it."""
    context = min(_CONTEXT, config.max_positions - config.canvas_length)
    for case in configuration_cases(config, "nvfp4", [canvases], context, timer.device):
        rule = case.kernel.choose(timer.device, **case.shape)
        for candidate in case.candidates(timer.device):
            try:
                taken = timer.of_kernel(partial(case.run, candidate))
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, TritonError) as error:
                print(f"{case.kernel.name} {candidate}: {error}", file=sys.stderr)
                taken = None
            yield {
                "kernel": case.kernel.name,
                "shape": {**case.shape},
                "configuration": candidate,
                "by_rule": candidate == rule,
                "microseconds": taken,
            }


def setting(device: torch.device) -> dict[str, Any]:
    """Return the circumstances of a measurement."""
    return {
        "device": card_name(device),
        "commit": commit(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def measured(sizes: Sizes, timer: Timer, out: Path | None = None) -> dict[str, Any]:
    """Return times in microseconds; `out` is written after each kernel."""
    found = {
        **setting(timer.device),
        "copy_bytes_per_second": copy_rate(timer),
        "bf16_operations_per_second": product_rate(timer),
        "kernels": [],
    }
    rates = found["copy_bytes_per_second"], found["bf16_operations_per_second"]
    for case in cases(sizes, timer.device):
        found["kernels"].append(measure(case, timer, *rates))
        write_result(out, found)
    return found


def measure(case: KernelCase, timer: Timer, bandwidth: float, rate: float) -> dict[str, Any]:
    expected = case.reference().float()
    error = (case.run().float() - expected).abs().max() / expected.abs().max()
    best = 1e6 * max(case.moved / bandwidth, case.operations / rate)
    taken = timer.of_kernel(case.run)
    return {
        "name": case.name,
        "shape": case.shape,
        "kernel": taken,
        "torch": timer.microseconds(case.composed),
        "best": best,
        "share_of_best": best / taken,
        "error": float(error),
    }


def copy_rate(timer: Timer) -> float:
    """Return the bytes that a copy reads and writes a second, of a gigabyte on a GPU."""
    source = torch.empty(2**30 if timer.on_gpu else 2**20, dtype=torch.uint8, device=timer.device)
    target = torch.empty_like(source)
    return 2e6 * source.nbytes / timer.microseconds(lambda: target.copy_(source))


def product_rate(timer: Timer) -> float:
    """Return the operations a second of a square bf16 product."""
    size = 8192 if timer.on_gpu else 256
    a, b = torch.randn(2, size, size, device=timer.device, dtype=torch.bfloat16)
    return 2e6 * size**3 / timer.microseconds(lambda: a @ b)


def show_measured(found: dict[str, Any]) -> None:
    print(
        f"{found['device']}, commit {found['commit']}, torch {found['torch']}, triton "
        f"{found['triton']}. A copy moves {found['copy_bytes_per_second'] / 1e12:.2f} TB/s, a bf16 "
        f"product computes {found['bf16_operations_per_second'] / 1e12:.0f} TFLOP/s."
    )
    show_settings(found)
    columns = ("kernel", "shape", "us", "torch, us", "best, us", "of best", "largest error")
    rows = [
        (
            each["name"],
            each["shape"],
            *(with_change(f"{each[key]:.1f}", each, key) for key in ("kernel", "torch")),
            f"{each['best']:.1f}",
            f"{each['share_of_best']:.0%}",
            f"{each['error']:.1e}",
        )
        for each in found["kernels"]
    ]
    print_table(columns, rows, left=columns[-1:], width=120)


def show_configurations(found: dict[str, Any]) -> None:
    print(f"{found['device']}, commit {found['commit']}, triton {found['triton']}.")
    rows = [
        (
            row["kernel"],
            words(row["shape"]),
            words(row["configuration"]),
            "-" if row["microseconds"] is None else f"{row['microseconds']:.1f}",
            "*" if row["by_rule"] else "",
        )
        for row in found["configurations"]
    ]
    headings = "kernel", "shape", "configuration", "us", "by rule"
    print_table(headings, rows, left=("shape", "configuration"), width=140)


def words(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def show_compiled(found: dict[str, Any]) -> None:
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
    print_table(columns, rows, left=columns[-1:], width=140)
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
    print_table(columns, rows, left=columns[-1:], width=140)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedLaunch:
    """One launch of a kernel: iterations of its loop by each warp of `programs`."""

    name: str
    shape: str
    case: OfflineCase
    iterations: float
    programs: int
    moved: float  # bytes
    operations: float = 0.0


def predicted(found: Mapping[OfflineCase, Mapping[str, Any]], sizes: Sizes) -> list[dict[str, Any]]:
    """Return predicted times in microseconds of the launches whose kernels are in `found`."""
    return [
        {"name": launch.name, "shape": launch.shape, "device": card.name}
        | times(launch, card, found[launch.case]["loop"])
        for card in CARDS
        for launch in launches(sizes, card)
        if "loop" in found.get(launch.case, {})
    ]


def times(launch: PredictedLaunch, card: Card, loop: int) -> dict[str, float]:
    """Return the prediction, its floor and the three times that they are computed from."""
    warps = launch.programs * read(launch.case[1])[1]
    issue = 1e6 * loop * launch.iterations * warps / (4 * card.processors * card.clock)
    moved = 1e6 * launch.moved / card.bandwidth
    computed = 1e6 * launch.operations / card.bf16
    floor = max(moved, computed)
    return {
        "instructions_a_number": loop / (numbers_a_lane(*launch.case[:2]) or 1),
        "issue": issue,
        "bytes": moved,
        "operations": computed,
        "floor": floor,
        "predicted": max(issue, floor),
    }


def launches(sizes: Sizes, card: Card) -> Iterator[PredictedLaunch]:
    """Yield launches of the experts, of a dense NVFP4 product and of the vocabulary pass.

    Of the vocabulary pass it is the first kernel. All experts are chosen equally often.
    """
    N, H, M, V = sizes.rows, sizes.hidden, sizes.dense, sizes.vocab
    E, inner, slots = sizes.experts, sizes.expert, sizes.rows * sizes.chosen
    target = Target(card.sm // 10, card.processors)
    for tunable, rows, columns, passed in (  # the last: activations, in and out
        (GATE_UP, inner, H, N * H + slots * inner),
        (DOWN, H, inner, slots * (inner + H)),
    ):
        name = tunable.name
        matrix = {"bits": 4, "slots": slots, "experts": E, "rows": rows, "columns": columns}
        options = tunable.by_rule(target, matrix)
        matrices = 2 if name == "gate_up" else 1
        yield PredictedLaunch(
            name=f"experts, {name}",
            shape=f"{N} x {H}, {sizes.chosen} of {E} of {inner}",
            case=_case(f"moe._{name}_kernel", card.sm, tile(options)),
            iterations=columns / 64,
            programs=E * cdiv(cdiv(slots, E), options["BLOCK_N"]) * cdiv(rows, options["BLOCK_M"]),
            moved=E * matrices * rows * columns * 9 / 16 + 2 * passed,
            operations=2 * slots * matrices * rows * columns,
        )
    options = W4A16.by_rule(target, {"rows": N, "outputs": M, "inputs": H})
    yield PredictedLaunch(
        name="NVFP4 product, W4A16",
        shape=f"{N} x {H} x {M}",
        case=_case("tiles._w4a16_kernel", card.sm, f" {options['UNROLL']} {tile(options)}"),
        iterations=H / 64 / options["UNROLL"],
        programs=cdiv(N, options["BLOCK_N"]) * cdiv(M, options["BLOCK_M"]),
        moved=M * H * 9 / 16 + 2 * N * (H + M),
        operations=2 * N * H * M,
    )
    case = _case("vocab._chunk_kernel", card.sm, "", "None")
    chunk = int(read(case[1])[0][-1])
    yield PredictedLaunch(
        name="vocabulary pass, chunks",
        shape=f"{N} x {V} bf16",
        case=case,
        iterations=1,
        programs=N * cdiv(V, chunk),
        moved=2 * N * V,
    )


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _case(name: str, sm: int, end: str, given: str = "*i16:16") -> OfflineCase:
    """Return the shipped bf16 configuration whose signature has the word `given` and ends so."""
    return next(
        case
        for case in CASES
        if (case[0], case[2]) == (name, sm)
        and case[1].startswith("*bf16")
        and given in case[1].split()
        and case[1].endswith(end)
    )


if __name__ == "__main__":
    main()
