"""Time the configurations of each kernel on this GPU and write the fastest to a file.

    dlm tune --model DIR                       # writes DIR/dlm_tuned.json, which is read at load
    dlm tune --output card.json                # at the shapes of a model of 26 billion parameters
    dlm serve --model DIR --tuned card.json

It should take one to two minutes, most of them to compile. No weights are read: they are random.
Kernels that have only one configuration are left out. Exit codes: 0 written, 1 a kernel that cannot
run, 2 bad usage or no GPU.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import torch
import triton
from rich.console import Console
from rich.table import Table
from triton.runtime.errors import TritonError

from dlm.cli.command_line import CommandParser, fail, numbers
from dlm.cli.display import status
from dlm.kernels.configurations import (
    DOWN_W4A4,
    FILE,
    GATE_UP_W4A4,
    W4A4,
    Configuration,
    Timing,
    TunableKernel,
    TunedFile,
)
from dlm.kernels.gpus import card_name, target_of
from dlm.models import ModelError, plan
from dlm.models.checkpoint import format_in
from dlm.models.families import DEFAULT
from dlm.models.json_files import read_json
from dlm.models.layouts import layout_of
from dlm.models.tuning import TuningCase, tuning_cases

_MILLISECONDS = 50  # of repetitions, for each configuration

Measure = Callable[[TuningCase, Configuration], float]
"""Function that returns the microseconds of a launch. Raises `TritonError` or `RuntimeError` if the
GPU cannot run it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedCase:
    """Kernel at a shape, with the times of its configurations that can run, in microseconds."""

    kernel: TunableKernel
    shape: Mapping[str, int]
    times: list[tuple[float, Configuration]]
    by_rule: float | None  # time of the configuration that is chosen without a file

    @property
    def fastest(self) -> tuple[float, Configuration]:
        return min(self.times, key=lambda each: each[0])


def main(measure: Measure | None = None) -> None:
    """Tune, with times that `measure` takes; None: on the GPU."""
    args = arguments()
    if measure is None and not torch.cuda.is_available():
        fail("there is no CUDA device whose kernels could be tuned")
    device = torch.device("cpu" if measure else "cuda")
    try:
        settings = DEFAULT.reference if args.model is None else read_json(config_path(args))
        config = layout_of(settings or {}).config(settings or {})
        context = min(args.context, config.max_positions - config.canvas_length)
        cases = tuning_cases(config, weights_of(args), args.slots, context, device)
        found = tuned_cases(cases, device, measure or time_on_gpu)
        show(found)  # before it is written: the times took minutes
        output, file = output_path(args), file_of(found, device)
        file.write(output)
    except ModelError as error:
        fail(str(error))
    except torch.OutOfMemoryError:
        fail("the GPU has too little memory: stop what runs there, or tune for fewer --slots", 1)
    except RuntimeError as error:
        fail(str(error), 1)
    except OSError as error:
        fail(f"cannot write {error.filename}: {error.strerror}")
    print(f"{output}: {len(found)} shapes on {file.card}")


def arguments() -> argparse.Namespace:
    parser = CommandParser(__doc__)
    add = parser.add_argument
    purpose = (
        "A model directory, or its config.json. Default: the shapes of the largest model that this "
        "project knows, of 26 billion parameters."
    )
    add("--model", type=Path, metavar="DIR|FILE", help=purpose)
    purpose = "The type of the experts' weights. Default: that of the model's directory, or nvfp4."
    add("--weights", choices=get_args(plan.Weights), help=purpose)
    purpose = "The numbers of slots whose passes are timed. Default: 1,2,4,8,16."
    add("--slots", type=numbers, metavar="N,N,...", help=purpose)
    purpose = "The tokens before each canvas, for attention."
    add("--context", type=int, default=8192, metavar="N", help=purpose)
    purpose = f"The file to write. Default: {FILE} in the model's directory, otherwise here."
    add("--output", type=Path, metavar="FILE", help=purpose)
    parser.set_defaults(slots=[1, 2, 4, 8, 16])
    args = parser.parse_args()
    if args.context < 0:
        fail(f"--context must be at least 0 tokens, got {args.context}")
    if args.model is not None and not args.model.exists():
        fail(f"--model {args.model}: there is no such directory or file")
    output = output_path(args)
    if not output.parent.is_dir():
        fail(f"--output {output}: there is no directory {output.parent}")
    if output.is_dir() or not os.access(output if output.exists() else output.parent, os.W_OK):
        fail(f"--output {output}: no file can be written there")
    return args


def config_path(args: argparse.Namespace) -> Path:
    return args.model / "config.json" if args.model.is_dir() else args.model


def weights_of(args: argparse.Namespace) -> plan.Weights:
    """Return the type of the experts' weights: the given one, or that of a model's directory."""
    if args.weights is not None:
        return args.weights
    floats = args.model is not None and args.model.is_dir() and format_in(args.model) is None
    return "bf16" if floats else "nvfp4"


def output_path(args: argparse.Namespace) -> Path:
    if args.output is not None:
        return args.output
    return Path(FILE) if args.model is None else config_path(args).parent / FILE


def tuned_cases(
    cases: Iterable[TuningCase], device: torch.device, measure: Measure
) -> list[TunedCase]:
    """Time all candidates of all cases. Raises `RuntimeError` for a case without one that runs;
    those of W4A4, which no engine uses by default, are left out with a warning."""
    found = []
    with status("timing kernels"):
        for case in cases:
            try:
                found.append(tuned_case(case, device, measure))
            except RuntimeError as error:
                if case.kernel not in (GATE_UP_W4A4, DOWN_W4A4, W4A4):
                    raise
                print(f"tune: {error}", file=sys.stderr)
    return found


def tuned_case(case: TuningCase, device: torch.device, measure: Measure) -> TunedCase:
    times, problem = [], None
    for configuration in case.candidates(device):
        try:
            times.append((measure(case, configuration), configuration))
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TritonError) as error:  # it takes more than this SM has
            problem = error
    if not times:
        where = f"{case.kernel.name} at {dict(case.shape)}"
        raise RuntimeError(f"{where}: no configuration runs on this GPU: {problem}")
    rule = case.kernel.by_rule(target_of(device), case.shape)
    by_rule = next((time for time, each in times if each == rule), None)
    return TunedCase(kernel=case.kernel, shape=case.shape, times=times, by_rule=by_rule)


def time_on_gpu(case: TuningCase, configuration: Configuration) -> float:
    """Return the median microseconds of a launch in a CUDA graph, with a cold cache."""

    run = replayed(lambda: case.run(configuration))
    milliseconds = triton.testing.do_bench(run, rep=_MILLISECONDS, return_mode="median")
    return 1e3 * float(milliseconds)  # pyright: ignore[reportArgumentType]  # one mode, one number


def replayed(run: Callable[[], Any]) -> Callable[[], None]:
    """Return `run` as a CUDA graph, as in a step: small kernels would wait for their launches."""
    run()  # compiles the kernel
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def file_of(found: list[TunedCase], device: torch.device) -> TunedFile:
    timings = [
        Timing(
            kernel=each.kernel.name,
            shape={**each.shape},
            configuration=each.fastest[1],
            microseconds=each.fastest[0],
        )
        for each in found
    ]
    there = device.type == "cuda"
    major, minor = torch.cuda.get_device_capability(device) if there else (9, 0)
    return TunedFile(
        card=card_name(device),
        sm=10 * major + minor,
        date=date.today().isoformat(),
        triton=triton.__version__,
        dlm=dlm_version(),
        timings=timings,
    )


def dlm_version() -> str:
    """Return the version of dlm, and in a checkout its commit."""
    root, own = Path(__file__).parents[2], version("dlm")
    if not (root / ".git").exists():
        return own
    git = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:  # there is no git
        return own
    return f"{own} {commit}" if commit else own


def show(found: list[TunedCase]) -> None:
    table = Table()
    for heading in ("kernel", "shape", "fastest", "us", "by rule, us"):
        table.add_column(heading, justify="right" if "us" in heading else "left")
    for each in found:
        time, configuration = each.fastest
        table.add_row(
            each.kernel.name,
            words(each.shape),
            words(configuration),
            f"{time:.1f}",
            "-" if each.by_rule is None else f"{each.by_rule:.1f}",
        )
    Console(width=140).print(table)


def words(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
