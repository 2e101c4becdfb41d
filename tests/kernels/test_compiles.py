"""Every kernel compiles for every GPU it is meant for. Needs none: Triton brings its own ptxas."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SHARED = {80: 166_912, 90: 232_448, 100: 232_448, 120: 101_376}  # bytes a block may use, by SM
TARGETS = {80: "sm_80", 90: "sm_90a", 100: "sm_100a", 120: "sm_120a"}

LOGITS = "{}:16 i32:16 *i32:16 i32:16 *i32:16 *fp32:16 *fp32:16 *i32:16"
CHUNK = LOGITS + " i32:16 i32:16 {} 4096 num_warps=8"
MERGE = (
    LOGITS + " *fp32:16 *fp32:16 *i64:16 *i64:16 *fp32:16 i32:16 i32:16 fp32 i32:16 i32:16"
    " {} 64 4096 num_warps=8"
)
KERNELS = [  # signatures as offline.py reads them
    ("grammar_mask._mask_logits_kernel", "*bf16:16 *i32:16 *i32:16 i32:16 i32:16 i32:16 4096"),
    ("grammar_mask._mask_logits_kernel", "*fp32:16 *i32:16 *i32:16 i32:16 i32:16 i32:16 4096"),
    ("grammar_mask._mask_logits_kernel", "*fp16 *i32 *i32 i32 i32 i32 4096"),
    ("vocab._chunk_kernel", CHUNK.format("*bf16", 30.0)),
    ("vocab._chunk_kernel", CHUNK.format("*fp32", 0.0)),
    ("vocab._merge_kernel", MERGE.format("*bf16", 30.0)),
    ("vocab._merge_kernel", MERGE.format("*fp32", 0.0)),
]
CASES = [(*kernel, sm) for kernel in KERNELS for sm in SHARED]


@pytest.fixture(scope="module")
def findings() -> dict[tuple[str, str, int], dict[str, Any]]:
    """What one process found that compiled all cases: importing torch takes longer than they do."""
    output = subprocess.run(
        [sys.executable, Path(__file__).with_name("offline.py")],
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        input=json.dumps(CASES),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    return dict(zip(CASES, json.loads(output), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-sm_{case[2]}-{case[1]}")
def test_compiles_without_spills_and_within_shared_memory(case, findings):
    found = findings[case]
    sm = case[2]

    assert "error" not in found, found["error"]
    assert found["target"] == [TARGETS[sm]]
    assert found["resources"]["STACK"] == 0, "registers spill"
    assert found["resources"]["LOCAL"] == 0, "registers spill"
    assert found["shared"] <= SHARED[sm]
