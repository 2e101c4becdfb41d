"""Run in a quarter of an hour what only a GPU can show, the most valuable part first.

    make card OUT=DIR                      # or: python scripts/card.py --out DIR
    python scripts/card.py --out DIR --tokenizer tokenizer.json.xz --only steps guide
    python scripts/card.py --out DIR --dry-run          # tiny sizes on a CPU, under three minutes
    python scripts/card.py --pack DIR                   # wheels for a machine without a network

| part | shows |
|---|---|
| tests | kernels against their references on the device, whole answers, captured passes |
| steps | a denoising step of the 26B, free and under a schema, with the work of each kernel |
| kernels | each kernel beside torch and the least possible time, then the fastest configurations |
| guide | the constraint's part of a step within another engine's sampler, as in vLLM |
| training | weights of the built-in model, from its own lessons |

Each part has a limit of time, and all parts together have `--minutes`. A part that fails or reaches
its limit is reported, and the next one begins. `DIR/card.log` has all output as it comes,
`DIR/summary.json` what ran and how it ended; results are files of JSON, written after each row, and
weights are copied after each minute of training. Exit code 1: some part failed.

The script itself needs Python alone. For a machine without a network, `--pack DIR` downloads wheels
for its Python into DIR beforehand, copies the `--tokenizer` there, and prints every file with its
size. `--wheels DIR` installs them on that machine, for this run alone.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from measure.checkout import commit

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 64 << 20  # bytes that may travel with a call
# Packages that images with torch, triton and pytest may lack.
TRAVELS = """pydantic pydantic-core annotated-types typing-inspection xgrammar apache-tvm-ffi
jsonschema jsonschema-specifications referencing rpds-py beartype transformers""".split()
# The files with tests that are marked "gpu": others may need packages that do not travel.
MARKED = ["tests/kernels", "tests/models", "tests/scripts/test_bench_kernels.py"]
MANYLINUX = ("_2_28", "_2_27", "_2_24", "_2_17", "2014")  # systems whose wheels may be taken
_SETTLES = 5.0  # seconds without a change, after which a file is taken for complete
_POLL = 0.2  # seconds


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part: commands that run one after the other, within one limit."""

    name: str
    minutes: float
    commands: Sequence[Sequence[str]]
    kept: Mapping[Path, str] = field(default_factory=dict)  # files copied to the output, by name


def parts(args: argparse.Namespace, scratch: Path) -> list[Part]:
    """Return the parts in their order; `scratch` is a folder for what is not kept."""
    dry, out = args.dry_run, args.out
    tokenizer = ["--tokenizer", str(args.tokenizer)] if args.tokenizer else []
    small = ["--config", "models/tiny/config.json", "--device", "cpu", "--kv", "fp32"]
    small += ["--weights", "bf16", "--slots", "1,2", "--context", "24", "--steps", "2"]
    steps = small if dry else ["--slots", "1,4,16", "--steps", "12", *tokenizer]
    guide = ["--canvases", "1,2", "--rows", "32", "--steps", "2"] if dry else tokenizer
    weights = scratch / "tiny"
    training = ["--warm", "models/tiny", "--out", str(weights), "--pool", "2", "--context", "4096"]
    training += ["--peak", ".3", "--rise", "50", "--save", "1000000", "--save-minutes", "1"]
    if dry:
        training += ["--steps", "1", "--batch", "1", "--device", "cpu", "--context", "768"]
    else:
        minutes, workers = f"{args.training_minutes - 0.7:.2f}", str(max(1, cores() - 3))
        training += ["--minutes", minutes, "--batch", "256", "--workers", workers]
        training += ["--device", "cuda", "--bf16", "--compile"]
    plain = ["--config", "examples/nemotron-labs-diffusion-3b.json"]
    candidates = [
        script("bench_kernels", "--configurations", *config, "--out", str(out / f"{name}.json"))
        for name, config in (("configurations-plain", plain), ("configurations", []))
        if not dry
    ]
    kernels = ["--small"] if dry else []
    return [
        Part(name="tests", minutes=4, commands=tests(dry)),
        Part(
            name="steps",
            minutes=3,
            commands=[script("bench_step", *steps, "--profile", "--out", str(out / "steps.json"))],
        ),
        Part(
            name="kernels",
            minutes=3,
            commands=[
                script("bench_kernels", *kernels, "--out", str(out / "kernels.json")),
                *candidates,
            ],
        ),
        Part(
            name="guide",
            minutes=1,
            commands=[script("bench_guide", *guide, "--out", str(out / "guide.json"))],
        ),
        Part(
            name="training",
            minutes=args.training_minutes,
            commands=[script("train_tiny", *training)],
            kept={weights / "model.safetensors": "model.safetensors"},
        ),
    ]


def tests(dry: bool) -> list[list[str]]:
    # The plugin warns under xdist, and a warning is an error.
    pytest = [sys.executable, "-m", "pytest", "-q", "--durations=5", "--maxfail=20"]
    pytest += ["-p", "no:benchmark"]
    if dry:
        return [[*pytest, "tests/kernels/test_rotary.py", "tests/dlm/test_devices.py"]]
    spread = ["-n", str(min(8, cores()))] if importable("xdist") else []
    kernels = [*pytest, *spread, "tests/kernels", "--ignore", "tests/kernels/test_compiles.py"]
    marked = [*pytest, *spread, "-m", "gpu", *MARKED]
    return [marked, [*pytest, "tests/dlm/test_devices.py"], [*kernels, "-m", "not gpu"]]


def script(name: str, *args: str) -> list[str]:
    return [sys.executable, str(ROOT / "scripts" / f"{name}.py"), *args]


def cores() -> int:
    return len(os.sched_getaffinity(0))


def importable(name: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    return subprocess.run([sys.executable, "-c", code]).returncode == 0


def main() -> None:
    args = arguments()
    if args.pack is not None:
        sys.exit(pack(args))
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, (args.out / "card.log").open("w") as log:
        environment = prepared(args.wheels, Path(scratch), log)
        chosen = [p for p in parts(args, Path(scratch)) if p.name in (args.only or [p.name])]
        facts = machine(environment) | {"commit": commit()}
        sys.exit(run(chosen, args.out, args.minutes, environment, log, facts))


def run(
    chosen: Sequence[Part],
    out: Path,
    minutes: float,
    environment: Mapping[str, str],
    log: TextIO,
    facts: Mapping[str, Any],
) -> int:
    """Run the parts and write the summary, with `facts`; return the exit code."""
    end = time.monotonic() + 60 * minutes
    outcomes: list[dict[str, Any]] = []
    summary = {**facts, "parts": outcomes}
    for part in chosen:
        left = end - time.monotonic()
        limit = min(60 * part.minutes, left)
        print(f"== {part.name}: at most {max(0.0, limit):.0f} s", file=log, flush=True)
        print(f"{part.name}: at most {max(0.0, limit):.0f} s", flush=True)
        outcome = run_part(part, out, limit, environment, log)
        outcomes.append(outcome)
        print(f"{part.name}: {outcome['outcome']} after {outcome['seconds']:.0f} s", flush=True)
        (out / "summary.json").write_text(json.dumps(summary, indent=1))
    return int(any(each["outcome"] != "done" for each in outcomes))


def run_part(
    part: Part, out: Path, limit: float, environment: Mapping[str, str], log: TextIO
) -> dict[str, Any]:
    """Run the commands of a part within `limit` seconds; a failed one does not end the others."""
    begin, failed = time.monotonic(), list[str]()
    outcome = "done"
    for command in part.commands:
        left = limit - (time.monotonic() - begin)
        if left <= 0:
            outcome = "limit"
            break
        code = run_command(command, left, environment, log, part.kept, out)
        if code is None:
            outcome = "limit"
            break
        if code != 0:
            failed.append(f"exit code {code}: {' '.join(command)}")
    if failed and outcome == "done":
        outcome = "failed"
    seconds = time.monotonic() - begin
    commands = [" ".join(command) for command in part.commands]
    row = {"name": part.name, "outcome": outcome, "seconds": seconds, "commands": commands}
    return {**row, "failed": failed}


def run_command(
    command: Sequence[str],
    limit: float,
    environment: Mapping[str, str],
    log: TextIO,
    kept: Mapping[Path, str],
    out: Path,
) -> int | None:
    """Return the exit code of a command; None if it was ended at its limit, with its children."""
    print(f"-- {' '.join(command)}", file=log, flush=True)
    end = time.monotonic() + limit
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while process.poll() is None and time.monotonic() < end:
            time.sleep(_POLL)
            keep(kept, out, _SETTLES)
        code = process.poll()
    finally:
        end_group(process)
    keep(kept, out, 0.0 if code == 0 else _SETTLES)
    return code


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a command and all processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def keep(kept: Mapping[Path, str], out: Path, age: float) -> None:
    """Copy files that have not changed for `age` seconds, unless the copy is as new."""
    for source, name in kept.items():
        target = out / name
        if not source.exists():
            continue
        changed = source.stat().st_mtime
        if time.time() - changed >= age and not (
            target.exists() and target.stat().st_mtime >= changed
        ):
            new = target.with_name(f"{name}.new")
            shutil.copy2(source, new)
            new.replace(target)


def prepared(wheels: Path | None, scratch: Path, log: TextIO) -> dict[str, str]:
    """Return the environment of the parts. Links make `dlm` whole without an installation."""
    for folder in ("kernels", "grammar", "models"):
        link = ROOT / "dlm" / folder
        if not link.exists():
            link.symlink_to(Path("..") / folder)
    paths = [str(ROOT)]
    if wheels is not None:
        site = scratch / "site"
        install = ["install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--upgrade"]
        files = [str(path) for path in sorted(wheels.glob("*.whl"))]
        pip = [sys.executable, "-m", "pip", *install, "--target", str(site), *files]
        subprocess.run(pip, check=True, stdout=log, stderr=subprocess.STDOUT)
        paths.insert(0, str(site))
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def machine(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what the figures depend on: the card and the versions."""
    code = (
        "import json, torch, triton; there = torch.cuda.is_available(); print(json.dumps({"
        "'device': torch.cuda.get_device_name() if there else 'cpu', 'torch': torch.__version__, "
        "'triton': triton.__version__}))"
    )
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    here = {"python": platform.python_version(), "cores": cores()}
    return here | (json.loads(found.stdout) if found.returncode == 0 else {"error": found.stderr})


def pack(args: argparse.Namespace) -> int:
    """Put into a directory what a machine without a network lacks; print files and sizes.

    Return the exit code: 1 if a wheel is missing, or if they and the checkout exceed `LIMIT`.
    """
    directory: Path = args.pack
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--implementation=cp", f"--python-version={args.python}"]
    command += [f"--platform=manylinux{name}_x86_64" for name in MANYLINUX]
    for name in TRAVELS:  # at the versions of this environment, which fit each other
        requirement = f"{name}=={version(name)}"
        if subprocess.run([*command, "--dest", str(directory), requirement]).returncode:
            print(f"card: no wheel of {requirement} for Python {args.python}", file=sys.stderr)
            return 1
    if args.tokenizer is not None:
        shutil.copy(args.tokenizer, directory)
    packed, checkout = sorted(directory.iterdir()), travelling()
    for path in packed:
        print(f"{path.stat().st_size:12,}  {path.name}")
    total = sum(path.stat().st_size for path in (*packed, *checkout))
    print(f"{total:12,}  of at most {LIMIT:,}, with the checkout's {len(checkout):,} files")
    return int(total > LIMIT)


def travelling() -> list[Path]:
    """Return the files of the checkout: those that git tracks."""
    git = ["git", "-C", str(ROOT), "ls-files", "-z"]
    names = subprocess.run(git, capture_output=True, text=True, check=True).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-h", "--help", action="help", help="Show this help.")
    add("--out", type=Path, metavar="DIR", help="The directory of all results.")
    add("--minutes", type=float, default=14, metavar="M", help="The limit of all parts together.")
    purpose = "The limit of the training."
    add("--training-minutes", type=float, default=3, metavar="M", help=purpose)
    names = ("tests", "steps", "kernels", "guide", "training")
    purpose = f"The parts that run: {', '.join(names)}. Default: all."
    add("--only", nargs="+", choices=names, metavar="PART", help=purpose)
    purpose = (
        "The tokenizer.json or tokenizer.json.xz for steps and guide: Gemma's has 262,144 tokens."
    )
    add("--tokenizer", type=Path, metavar="FILE", help=purpose)
    add("--wheels", type=Path, metavar="DIR", help="Wheels to install for this run alone.")
    add("--dry-run", action="store_true", help="Run all parts at tiny sizes, on the CPU.")
    add("--pack", type=Path, metavar="DIR", help="Download wheels into DIR, list them, and stop.")
    purpose = "The version of Python for which --pack downloads."
    add("--python", default="3.12", metavar="X.Y", help=purpose)
    args = parser.parse_args(given)
    if (args.out is None) == (args.pack is None):
        parser.error("one of --out DIR and --pack DIR is needed")
    if min(args.minutes, args.training_minutes) <= 0:
        parser.error("--minutes and --training-minutes must be above 0")
    for path in (args.tokenizer, args.wheels):
        if path is not None and not path.exists():
            parser.error(f"there is no {path}")
    if args.out is not None:
        args.out = args.out.resolve()
        args.tokenizer = args.tokenizer and args.tokenizer.resolve()
    return args


if __name__ == "__main__":
    main()
