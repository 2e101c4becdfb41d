"""Every kernel compiles for every GPU it is meant for. Needs none: Triton brings its own ptxas."""

import re
from typing import Any

import pytest

from dlm.kernels import offline
from dlm.kernels.shipped import CASES, INSTRUCTION, SHARED, SPILLS, TARGETS


@pytest.fixture(scope="module")
def found() -> dict[offline.Case, dict[str, Any]]:
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
