"""Every kernel in every configuration that a launcher uses, and its compilation for GPUs that need
not be present; Triton brings its own ptxas.

A kernel imported under TRITON_INTERPRET can only be interpreted, so `findings` starts a process of
its own. A case is a kernel, as in `file.function`, a signature and an SM's number. A signature is
that of `triton.tools.compile`: a type for each parameter, with ":16" after it if the pointer or
number is a multiple of 16, a value for each constexpr, None for a pointer that is left out; then
options (num_warps=8). `CASES` are those of this package.
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

from dlm.kernels import norms, rotary, routing, tiles, vocab
from dlm.kernels.configurations import (
    ATTENTION,
    DOWN,
    DOWN_W4A4,
    GATE_UP,
    GATE_UP_W4A4,
    HEADS,
    VOCABULARY,
    W4A4,
    W4A16,
)

_TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
_WAIT = 16  # instructions; a shorter loop only waits for a barrier
_ONE_PROCESS = 30  # cases that do not take another process

OfflineCase = tuple[str, str, int]


def findings(cases: Sequence[OfflineCase]) -> list[dict[str, Any]]:
    """Return the result of `compile_kernel` for each case, or its `error` as text. All cores take
    part in many cases: a process takes as long to start as for some."""
    count = min(os.cpu_count() or 1, 1 + len(cases) // _ONE_PROCESS)
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


SHARED = {80: 166_912, 90: 232_448, 100: 232_448, 120: 101_376}  # bytes that a block may use, by SM
# Bytes of registers that a kernel may spill, by name and SM. An H100 was fastest with tiles of
# attention that hold a whole row of 256 values of 128 queries; no other tile has room for that.
SPILLS = {("attention._attention_kernel", sm): 1024 for sm in (90, 100)}
TARGETS = {80: "sm_80", 90: "sm_90a", 100: "sm_100a", 120: "sm_120a"}

MASKED = "*i32:16 i32 *i64:16 *i64:16"
WHERE = (MASKED, "None i32 None None")  # masks and rows, or neither
CHUNK = (
    f"{{0}}:16 i32:16 {{1}} *fp32:16 *fp32:16 i32:16 i32:16 {{2}} {vocab._UNIT} {{3[CHUNK]}}"
    " num_warps={3[num_warps]}"
)
MERGE = (
    "{0}:16 i32:16 {1} *fp32:16 *fp32:16 *fp32:16 *fp32:16 *i64:16 *i32:16 *fp32:16 *i32:16"
    f" i32 i32:16 fp32 i32:16 i32:16 {{2}} {vocab._UNIT} {2**18 // vocab._UNIT}"
    f" {vocab._FIT} num_warps={vocab._MERGE_WARPS}"
)
CUT = (
    "{0}:16 i32:16 {1} *fp32:16 *i32:16 *fp32:16 *fp32:16 *i32:16"
    " i32:16 i32:16 i32 {2} {3} 4096 num_warps=8 maxnreg=128"
)
OF_W4A16 = "{0}:16 {1} {0}:16 i32 i32:16 i32 {2} True {3[UNROLL]} "
OF_W4A4 = "*u8:16 *i32:16 *u8:16 *i32:16 *fp32 *fp32 *bf16:16 i32 i32:16 i32 {} "
OF_STACKS_W4A4 = "*u8:16 *i32:16 *fp32 *u8:16 *i32:16 *fp32:16 "
OF_GATE_UP_W4A4 = OF_STACKS_W4A4 + "*i64:16 *i64:16 *bf16:16 i32:16 i32 i32:16 i32 False 128 {} "
OF_DOWN_W4A4 = OF_STACKS_W4A4 + "*fp32:16 *i64:16 *i64:16 *bf16:16 i32:16 i32:16 i32 128 {} "
BLOCK_SCALED = {
    100: "tcgen05.mma.*kind::mxf4nvf4.block_scale",
    120: "mma.*kind::mxf4nvf4.block_scale",
}
OF_GATE_UP = (
    "*bf16:16 {} *i64:16 *i64:16 *bf16:16 i32:16 i32:16 i32 i32:16 i32 True False {} True 128 "
)
OF_SILU = OF_GATE_UP.replace("True False {}", "True True {}")
OF_DOWN = "*bf16:16 {} *fp32:16 *i64:16 *i64:16 *bf16:16 i32:16 i32:16 i32 {} True 128 "
OF_ATTENTION = (
    "*bf16:16 {0}:16 {0}:16 *bf16:16 *bf16:16 *fp32:16 *fp32:16 *i32:16 *i32:16 {1}:16 *fp32:16"
    " i32 i32 i32 i32 {2} {3[DV]} 16 {5} {4} 16 {3[BLOCK_M]} {3[BLOCK_N]} {3[OWN_N]}"
    " num_warps={3[num_warps]} num_stages={3[num_stages]}"
)
MERGE_PARTS = "*fp32:16 *fp32:16 *bf16:16 i32 {} 4"
APPEND = "{0}:16 {0}:16 *fp32:16 *fp32:16 *i64:16 *i64:16 {1}:16 {1}:16 2048 2048"
NORMS = "{0}:16 {0}:16 " + 8 * "{0}:16 " + "fp32 fp32 {2} 2816 4096 num_warps={1}"
END = "{0}:16 {0}:16 {1}:16 " + 7 * "{0}:16 " + "fp32 2816 {2} 4096 num_warps={3}"
TURN = (
    "{0}:16 {0}:16 {0}:16 {1} *fp32:16 *fp32:16 {2} {0}:16 {0}:16 {0}:16"
    " i32:16 i32:16 i32:16 fp32 {3} {4} {5} {6} {7} num_warps={7}"
)
GATED = "{0}:16 {0}:16 {0}:16 i32:16 i32:16 {1} {2} {3} num_warps=4"
RESIDUAL = "{0}:16 {1} {0}:16 {0}:16 {0}:16 fp32 {2[H]} {3} {2[BLOCK]} num_warps={2[num_warps]}"
CHOOSE = "{0}:16 {1} *fp32:16 *i64:16 i32:16 i32 128 8 num_warps=1"
CHOOSE_IN_GROUPS = "*fp32:16 *fp32:16 *fp32:16 *i64:16 i32 i32 fp32 8 32 8 8 32 num_warps=1"
SORT = "*i64:16 *i64:16 *i64:16 i32:16 i32:16 {} num_warps=8"


def tile(options: dict[str, int]) -> str:
    """Return a launcher's options as the end of a signature."""
    return "{BLOCK_N} {BLOCK_M} num_warps={num_warps} num_stages={num_stages}".format(**options)


def stack(four_bit: bool, sm: int) -> str:
    """Return the types of weights, scales and tensor scales on an SM."""
    if not four_bit:
        return "*bf16:16 *bf16:16 *bf16:16"
    scales = "*u8" if tiles.BY_SM[sm // 10]["WEIGHTS_FIRST"] else "*i32"
    return f"*i16:16 {scales}:16 *fp32:16"


def layout(four_bit: bool, sm: int) -> str:
    """Return SPLIT and WEIGHTS_FIRST on an SM."""
    return "{SPLIT} {WEIGHTS_FIRST}".format(**tiles.layout(sm // 10, four_bit))


def read(signature: str) -> tuple[list[str], int]:
    """Return a signature's types and constants, and a program's number of warps."""
    values = [word for word in signature.split() if "=" not in word]
    return values, int(signature.partition("num_warps=")[2].split()[0])


def numbers_a_lane(name: str, signature: str) -> float | None:
    """Return the number of four-bit weights decoded, or of logits read, per lane in an iteration of
    a kernel's loop; None for kernels for which this matters little."""
    values, warps = read(signature)
    if name == "vocab._chunk_kernel":
        return int(values[-1]) / (32 * warps)
    if "*i16:16" not in values:
        return None
    matrices = {"moe._gate_up_kernel": 2, "tiles._w4a16_kernel": int(values[-3])}.get(name, 1)
    return matrices * 64 * int(values[-1]) / (32 * warps)


# Names and signatures; SMs, and the matrix instruction that the kernel must contain on each.
KERNELS: list[tuple[str, str, dict[int, str]]] = [
    *(
        (f"vocab.{kernel}", signature.format(logits, where, cap, options), dict.fromkeys(sms, ""))
        for kernel, signature, tunable in (
            ("_chunk_kernel", CHUNK, VOCABULARY.candidates(0, {})),
            ("_merge_kernel", MERGE, ({},)),
        )
        for options in tunable
        for logits, cap, sms in (("*bf16", 30.0, SHARED), ("*fp32", 0.0, [120]))
        for where in WHERE
    ),
    *(
        ("vocab_cut._cut_kernel", CUT.format(logits, where, cap, low), dict.fromkeys(SHARED, ""))
        for logits, cap, low in (("*bf16", 30.0, 16), ("*fp32", 0.0, 0))
        for where in WHERE
    ),
    *(
        (
            "nvfp4._quantize_kernel",
            f"*bf16:16 {scale} *u8:16 *fp8e4nv:16 i32:16 64 num_warps=4",
            dict.fromkeys((90, 100, 120), ""),
        )
        for scale in ("*fp32:16", "*fp32")  # the scale of an expert's second product is not aligned
    ),
    *(
        (
            "tiles._w4a16_kernel",
            OF_W4A16.format(x, stack(True, sm), layout(True, sm), options) + tile(options),
            {sm: "mma"},
        )
        for x, sms in (("*bf16", SHARED), ("*fp16", [120]))
        for sm in sms
        for options in W4A16.candidates(sm // 10, {})
    ),
    *(
        ("nvfp4._w4a4_kernel", OF_W4A4.format(group) + tile(options), {sm: needed})
        for sm, needed in BLOCK_SCALED.items()
        for options in W4A4.candidates(sm // 10, {})
        for group in (1, 2)
    ),
    *(
        (f"moe_w4a4.{kernel}", signature.format(group) + tile(options), {sm: needed})
        for kernel, signature, tunable in (
            ("_gate_up_w4a4_kernel", OF_GATE_UP_W4A4, GATE_UP_W4A4),
            ("_down_w4a4_kernel", OF_DOWN_W4A4, DOWN_W4A4),
        )
        for sm, needed in BLOCK_SCALED.items()
        for options in tunable.candidates(sm // 10, {})
        for group in (1, 2)
    ),
    *(
        (
            f"moe.{kernel}",
            signature.format(stack(four_bit, sm), f"{four_bit} {layout(four_bit, sm)}")
            + tile(options),
            {sm: "mma"},
        )
        for kernel, signature, tunable in (
            ("_gate_up_kernel", OF_GATE_UP, GATE_UP),
            ("_gate_up_kernel", OF_SILU, GATE_UP),
            ("_down_kernel", OF_DOWN, DOWN),
        )
        for four_bit in (True, False)
        for sm in SHARED
        for options in tunable.candidates(sm // 10, {"bits": 4 if four_bit else 16})
    ),
]
# Heads of queries on one of keys, and tokens of a block that is cached whole, as models have them:
# without a split of the keys, and with one. Others have two heads, and no blocks.
GROUPS = {128: ((4, 1), (8, 32)), 256: ((2, 1), (2, 1)), 512: ((8, 1), (8, 1))}
for D, size in HEADS:
    for sm in SHARED if D in GROUPS else (90, 120):  # small heads do not use all of an SM
        kind = ("*u8" if sm == 80 else "*fp8e4nv") if size == 1 else "*bf16"
        both = ((1, "*bf16"), (4, "*fp32"))
        for options in ATTENTION.candidates(sm // 10, {"head_dim": D, "bytes": size}):
            for splits, out in both if D in GROUPS else both[size - 1 : size]:  # one is enough
                G, block = GROUPS.get(D, ((2, 1), (2, 1)))[splits > 1]
                signature = OF_ATTENTION.format(kind, out, f"{G} {D}", options, splits, block)
                needed = {sm: "mma" if D in GROUPS or sm in (80, 120) else ""}
                KERNELS.append(("attention._attention_kernel", signature, needed))
KERNELS += [
    *(
        ("attention._merge_kernel", MERGE_PARTS.format(D), dict.fromkeys(SHARED, ""))
        for D in (128, 512)
    ),
    ("paging._append_kernel", APPEND.format("*bf16", "*u8"), dict.fromkeys(SHARED, "")),
    ("paging._append_kernel", APPEND.format("*bf16", "*bf16"), {120: ""}),
]
for x, sms in (("*bf16", SHARED), ("*fp16", [90])):  # launches around a layer's products
    everywhere = dict.fromkeys(sms, "")
    warps = norms.options(2816)["num_warps"]
    KERNELS += [
        *(
            ("norms._add_attention_kernel", NORMS.format(x, warps, order), everywhere)
            for order in (False, True)
        ),
        ("norms._end_layer_kernel", END.format(x, x, 0, warps), everywhere),
        ("norms._end_layer_kernel", END.format(x, x, 8, warps), everywhere),
        *(
            (
                "rotary._turn_kernel",
                TURN.format(x, gains, scale, heads, D, turning, D // 2, rotary.HEADS),
                everywhere,
            )
            for heads, D, turning, gains, scale in (
                ("16 8", 256, 256, f"{x}:16 {x}:16", "None"),
                ("16 2", 512, 512, f"{x}:16 {x}:16", "None"),
                ("32 8", 128, 128, "None None", "*fp32:16"),  # Nemotron-Labs-Diffusion
                ("32 4", 128, 128, f"{x}:16 {x}:16", "*fp32:16"),  # SDAR
                ("16 4", 128, 64, f"{x}:16 {x}:16", "*fp32:16"),  # LLaDA2
            )
        ),
        *(
            ("norms._gated_kernel", GATED.format(x, columns, silu, norms.BLOCK), everywhere)
            for columns, silu in ((2112, False), (9216, True))
        ),
        *(
            ("residual._add_and_norm_kernel", signature, everywhere)
            for signature in (
                RESIDUAL.format(x, f"{x}:16 None", norms.options(5120), 0),
                RESIDUAL.format(x, f"None {x}:16", norms.options(2048), 8),
                RESIDUAL.format(x, f"{x}:16 {x}:16", norms.options(4096), 8),
            )
        ),
        *(
            ("routing._choose_kernel", CHOOSE.format(x, scale), everywhere)
            for scale in (f"{x}:16", "None")
        ),
    ]
KERNELS += [
    ("routing._choose_in_groups_kernel", CHOOSE_IN_GROUPS, dict.fromkeys(SHARED, "")),
    ("routing._sort_kernel", SORT.format(routing.BLOCK), dict.fromkeys(SHARED, "")),
]
CASES: list[OfflineCase] = [(name, signature, sm) for name, signature, sms in KERNELS for sm in sms]
INSTRUCTION = {
    (name, signature, sm): needed for name, signature, sms in KERNELS for sm, needed in sms.items()
}


if __name__ == "__main__":
    print(json.dumps([_finding(case) for case in json.load(sys.stdin)]))
