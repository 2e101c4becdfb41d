"""Compilation of kernels for GPUs that need not be present; Triton brings its own ptxas.

A kernel imported under TRITON_INTERPRET can only be interpreted, so `findings` starts a process of
its own. A case is a kernel, as in `file.function`, a signature and an SM's number. A signature is
that of `triton.tools.compile`: a type for each parameter, with ":16" after it if the pointer or
number is a multiple of 16, a value for each constexpr, None for a pointer that is left out; then
options (num_warps=8).
"""

import ast
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

_TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
_WAIT = 16  # instructions; a shorter loop only waits for a barrier

OfflineCase = tuple[str, str, int]


def findings(cases: Sequence[OfflineCase]) -> list[dict[str, Any]]:
    """Return the result of `compile_kernel` for each case, or its `error` as text. All cores take
    part."""
    count = os.cpu_count() or 1
    with ThreadPoolExecutor(count) as pool:
        parts = [*pool.map(_in_a_process, (cases[i::count] for i in range(count)))]
    return [parts[i % count][i // count] for i in range(len(cases))]


def _in_a_process(cases: Sequence[OfflineCase]) -> list[dict[str, Any]]:
    """Run cases in a process of its own."""
    output = subprocess.run(
        [sys.executable, "-m", __name__],
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        input=json.dumps(cases),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    return json.loads(output)


def compile_kernel(name: str, signature: str, sm: int) -> dict[str, Any]:
    """Return the PTX target, bytes of shared memory, registers, spilled bytes, matrix instructions,
    and the number of instructions in the longest innermost loop, or in a kernel without loops
    (`loop`)."""
    file, function = name.split(".")
    kernel = getattr(importlib.import_module(f"dlm.kernels.{file}"), function)
    words = signature.split()
    options = {key: int(value) for key, _, value in (w.partition("=") for w in words) if value}
    types, constants, attributes = {}, {}, {}
    for param, word in zip(kernel.params, [w for w in words if "=" not in w], strict=True):
        if param.is_constexpr or word == "None":
            types[param.name] = "constexpr"
            constants[param.name] = ast.literal_eval(word)
        else:
            types[param.name], _, multiple = word.partition(":")
            if multiple:
                attributes[param.num,] = [["tt.divisibility", int(multiple)]]
    compiled = triton.compile(
        ASTSource(kernel, types, constants, attributes), GPUTarget("cuda", sm, 32), options
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        resources = _resources(file.name)
        loop = longest_loop(_tool("nvdisasm", "-c", file.name))
    return {
        "target": ",".join(re.findall(r"^\.target (\w+)", compiled.asm["ptx"], re.MULTILINE)),
        "shared": compiled.metadata.shared,
        "instructions": sorted(
            set(re.findall(r"\b(?:w?g?mma|tcgen05\.mma)\.\S+", compiled.asm["ptx"]))
        ),
        "registers": resources["REG"],
        "spills": resources["STACK"] + resources["LOCAL"],
        "loop": loop,
    }


def longest_loop(assembly: str) -> int:
    """Return the number of instructions in the longest innermost loop of a kernel's SASS; without
    loops, up to its end. A loop is the code between a label and a branch back to it. It is
    innermost if it contains no other loop, except those that wait."""
    labels: dict[str, int] = {}
    loops: list[tuple[int, int]] = []  # first instruction, and the one after the last
    count = last = 0
    for line in assembly.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = count
        elif re.match(r"\s*/\*[0-9a-f]{4,}\*/\s", line):
            count += 1
            last = count if re.search(r"\bEXIT\b", line) else last
            target = re.search(r"\bBRA\b.*?(\.L_x_\d+)", line)
            if target and target[1] in labels and count - labels[target[1]] >= _WAIT:
                loops.append((labels[target[1]], count))
    inner = [
        end - start
        for start, end in loops
        if not any(start <= a and b <= end and (a, b) != (start, end) for a, b in loops)
    ]
    return max(inner, default=last)


def _resources(cubin: str) -> dict[str, int]:
    """Return the resources of a cubin's one kernel that ptxas counted: REG, STACK, LOCAL and
    more."""
    text = _tool("cuobjdump", "--dump-resource-usage", cubin)
    return {key: int(value) for key, value in re.findall(r"\b([A-Z]+):(\d+)", text)}


def _tool(name: str, *arguments: str) -> str:
    """Run a tool that Triton brings, and return its output."""
    command = [str(_TOOLS / name), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _finding(case: OfflineCase) -> dict[str, Any]:
    try:
        return compile_kernel(*case)
    except Exception as error:  # one kernel's failure must not hide other results
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    print(json.dumps([_finding(case) for case in json.load(sys.stdin)]))
