"""Predicted times of kernels that decode four bits and of the vocabulary pass's first kernel.

No GPU is needed: the prediction is the longest of three times. Instructions of a kernel's loop
(`offline.py`), times iterations, programs and warps, over four a clock of each processor; bytes
that have to be moved, over bandwidth; operations of matrices, over the rate of dense bf16 products.
The last two are the floor, which no kernel gets below.

It leaves out all waiting. Measured on an H100 with 256 tokens of the 26B, gate and up took 147 us
where 97 are predicted, down 80 where 52 are, and the vocabulary pass, of two kernels, 70 where 52
are predicted for the first: 1.3 to 1.5 times as long. W4A16 and the two other GPUs were not
measured.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kernel_cases import Sizes

from dlm.kernels.moe import down_tiles, gate_up_tiles, tiling
from dlm.kernels.offline import OfflineCase
from dlm.kernels.shipped import CASES, numbers_a_lane, read, tile
from dlm.kernels.w4a16 import tile_for


@dataclass(frozen=True, slots=True, kw_only=True)
class GPU:
    """A GPU: its SM's number, and the rates that it can reach."""

    name: str
    sm: int
    processors: int
    clock: float  # Hz
    bandwidth: float  # bytes
    rate: float  # bf16 operations of matrices


GPUS = (
    GPU(
        name="RTX PRO 6000", sm=120, processors=188, clock=2.6e9, bandwidth=1.792e12, rate=503.8e12
    ),
    GPU(name="RTX 5090", sm=120, processors=170, clock=2.4e9, bandwidth=1.792e12, rate=209.5e12),
    GPU(name="H100", sm=90, processors=132, clock=1.75e9, bandwidth=3.0e12, rate=750e12),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch of a kernel: iterations of its loop by each warp of `programs`."""

    name: str
    shape: str
    case: OfflineCase
    iterations: float
    programs: int
    moved: float  # bytes
    operations: float = 0.0


def predicted(found: Mapping[OfflineCase, Mapping[str, Any]], sizes: Sizes) -> list[dict[str, Any]]:
    """Return times in microseconds, of launches whose kernels are `found` compiled."""
    return [
        {"name": launch.name, "shape": launch.shape, "device": gpu.name}
        | times(launch, gpu, found[launch.case]["loop"])
        for gpu in GPUS
        for launch in launches(sizes, gpu)
        if "loop" in found.get(launch.case, {})
    ]


def times(launch: Launch, gpu: GPU, loop: int) -> dict[str, float]:
    """Return the prediction, its floor and the three times of which they are the longest."""
    warps = launch.programs * read(launch.case[1])[1]
    issue = 1e6 * loop * launch.iterations * warps / (4 * gpu.processors * gpu.clock)
    moved = 1e6 * launch.moved / gpu.bandwidth
    computed = 1e6 * launch.operations / gpu.rate
    floor = max(moved, computed)
    return {
        "instructions_a_number": loop / (numbers_a_lane(*launch.case[:2]) or 1),
        "issue": issue,
        "bytes": moved,
        "operations": computed,
        "floor": floor,
        "predicted": max(issue, floor),
    }


def launches(sizes: Sizes, gpu: GPU) -> Iterator[Launch]:
    """Launches of the experts, of a dense NVFP4 product and of the vocabulary pass's first kernel.

    All experts are chosen, each as often as any other.
    """
    N, H, M, V = sizes.rows, sizes.hidden, sizes.dense, sizes.vocab
    E, inner, slots = sizes.experts, sizes.expert, sizes.rows * sizes.chosen
    major = gpu.sm // 10
    for name, candidates, rows, columns, passed in (  # the last: activations, in and out
        ("gate_up", gate_up_tiles(major, True), inner, H, N * H + slots * inner),
        ("down", down_tiles(major, True), H, inner, slots * (inner + H)),
    ):
        options, _ = tiling(candidates, slots, E)
        matrices = 2 if name == "gate_up" else 1
        yield Launch(
            name=f"experts, {name}",
            shape=f"{N} x {H}, {sizes.chosen} of {E} of {inner}",
            case=_case(f"moe._{name}_kernel", gpu.sm, tile(options)),
            iterations=columns / 64,
            programs=E * cdiv(cdiv(slots, E), options["BLOCK_N"]) * cdiv(rows, options["BLOCK_M"]),
            moved=E * matrices * rows * columns * 9 / 16 + 2 * passed,
            operations=2 * slots * matrices * rows * columns,
        )
    options = tile_for(N, M, major, gpu.processors)
    yield Launch(
        name="NVFP4 product, W4A16",
        shape=f"{N} x {H} x {M}",
        case=_case("w4a16._w4a16_kernel", gpu.sm, f" {options['UNROLL']} {tile(options)}"),
        iterations=H / 64 / options["UNROLL"],
        programs=cdiv(N, options["BLOCK_N"]) * cdiv(M, options["BLOCK_M"]),
        moved=M * H * 9 / 16 + 2 * N * (H + M),
        operations=2 * N * H * M,
    )
    case = _case("vocab._chunk_kernel", gpu.sm, "", "None")
    chunk = int(read(case[1])[0][-1])
    yield Launch(
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
    """Return the shipped configuration for bf16 whose signature has one word and ends as said."""
    return next(
        case
        for case in CASES
        if (case[0], case[2]) == (name, sm)
        and case[1].startswith("*bf16")
        and given in case[1].split()
        and case[1].endswith(end)
    )
