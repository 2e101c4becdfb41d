"""Every kernel compiles for every GPU it is meant for. Needs none: Triton brings its own ptxas."""

import re
from typing import Any

import pytest

from dlm.kernels import offline
from dlm.kernels.shipped import CASES, INSTRUCTION, SHARED, SPILLS, TARGETS, numbers_a_lane, read

DECODING = [  # weights of four bits, in bf16
    case for case in CASES if "*i16:16" in case[1] and case[1].startswith("*bf16")
]
MOST = {80: 5.5, 90: 5.0, 100: 5.0, 120: 4.5}  # instructions a weight

pytestmark = pytest.mark.timeout(1500)  # of the first test, for which all kernels are compiled


@pytest.fixture(scope="module")
def found() -> dict[offline.OfflineCase, dict[str, Any]]:
    """What one process found that compiled all cases: importing torch takes longer than they do."""
    return dict(zip(CASES, offline.findings(CASES), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-sm_{case[2]}-{case[1]}")
def test_compiles_within_registers_and_shared_memory(case, found):
    kernel = found[case]
    sm = case[2]

    assert "error" not in kernel, kernel["error"]
    assert kernel["target"] == TARGETS[sm]
    assert kernel["spills"] <= SPILLS.get((case[0], sm), 0)
    assert kernel["shared"] <= SHARED[sm]
    if INSTRUCTION[case]:
        assert any(re.search(INSTRUCTION[case], each) for each in kernel["instructions"])


@pytest.mark.parametrize("case", DECODING, ids=lambda case: f"{case[0]}-sm_{case[2]}-{case[1]}")
def test_decoding_takes_few_instructions_a_weight(case, found):
    """A warp that has few rows, or many columns, has more of loads and products for each weight: on
    SM 9.0 one instruction of four warps is all of them."""
    name, signature, sm = case
    *_, BLOCK_N, BLOCK_M = read(signature)[0]
    most = MOST[sm] + (0.5 if sm != 90 and (int(BLOCK_N) > 32 or int(BLOCK_M) < 128) else 0)

    assert found[case]["loop"] <= most * numbers_a_lane(name, signature)
