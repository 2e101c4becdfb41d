"""Compile kernels for GPUs that need not be there. test_compiles.py runs this as its own process:
a kernel imported under TRITON_INTERPRET can only be interpreted, never compiled.

Reads a JSON list of [kernel, signature, SM number] on stdin, writes a list of findings to stdout.
A signature is that of `triton.tools.compile`: a type for each parameter, with ":16" behind it if
the pointer or number is a multiple of 16, a value for each constexpr; then options (num_warps=8).
"""

import ast
import importlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

_CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def compile_kernel(name: str, signature: str, sm: int) -> dict[str, Any]:
    """The PTX target, bytes of shared memory, registers and matrix instructions of `name`, as in
    `file.function`."""
    file, function = name.split(".")
    kernel = getattr(importlib.import_module(f"dlm.kernels.{file}"), function)
    words = signature.split()
    options = {key: int(value) for key, _, value in (w.partition("=") for w in words) if value}
    types, constants, attributes = {}, {}, {}
    for param, word in zip(kernel.params, [w for w in words if "=" not in w], strict=True):
        if param.is_constexpr:
            types[param.name] = "constexpr"
            constants[param.name] = ast.literal_eval(word)
        else:
            types[param.name], _, multiple = word.partition(":")
            if multiple:
                attributes[param.num,] = [["tt.divisibility", int(multiple)]]
    compiled = triton.compile(
        ASTSource(kernel, types, constants, attributes), GPUTarget("cuda", sm, 32), options
    )
    return {
        "target": re.findall(r"^\.target (\w+)", compiled.asm["ptx"], re.MULTILINE),
        "shared": compiled.metadata.shared,
        "instructions": sorted(
            set(re.findall(r"\b(?:w?g?mma|tcgen05\.mma)\.\S+", compiled.asm["ptx"]))
        ),
        "resources": _resources(compiled.asm["cubin"]),
    }


def _resources(cubin: bytes) -> dict[str, int]:
    """Of the cubin's one kernel, as ptxas counted them: REG, STACK, LOCAL and more."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [_CUOBJDUMP, "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return {key: int(value) for key, value in re.findall(r"\b([A-Z]+):(\d+)", text)}


def _findings(case: tuple[str, str, int]) -> dict[str, Any]:
    try:
        return compile_kernel(*case)
    except Exception as error:  # one kernel's failure must not hide the others' findings
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    print(json.dumps([_findings(case) for case in json.load(sys.stdin)]))
