"""Every kernel compiles for every supported GPU. None is needed: Triton brings its own ptxas."""

import re
from typing import Any

import pytest

from dlm.kernels import offline
from dlm.kernels.offline import CASES, INSTRUCTION, SHARED, SPILLS, TARGETS, numbers_a_lane, read

DECODING = [  # weights of four bits, in bf16
    case for case in CASES if "*i16:16" in case[1] and case[1].startswith("*bf16")
]
MOST = {80: 5.5, 90: 5.0, 100: 5.0, 120: 4.5}  # instructions a weight

pytestmark = pytest.mark.timeout(1500)  # of the first test, for which all kernels are compiled


def one_of_each() -> set[offline.OfflineCase]:
    """Return a case of each kernel, of the SMs in turn."""
    names = dict.fromkeys(name for name, *_ in CASES)
    chosen = set()
    for turn, name in enumerate(names):
        cases = [case for case in CASES if case[0] == name]
        sms = sorted({sm for *_, sm in cases})
        chosen.add(next(case for case in cases if case[2] == sms[turn % len(sms)]))
    return chosen


BY_DEFAULT = one_of_each()


def parameters(cases: list[offline.OfflineCase]) -> list[Any]:
    """Return cases, marked exhaustive unless they are compiled by default."""
    return [
        pytest.param(
            case,
            id=f"{case[0]}-sm_{case[2]}-{case[1]}",
            marks=() if case in BY_DEFAULT else pytest.mark.exhaustive,
        )
        for case in cases
    ]


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> dict[offline.OfflineCase, dict[str, Any]]:
    """Results of all cases of this run, which are compiled together: importing torch takes longer
    than a case."""
    here = [item for item in request.session.items if item.path == request.path]
    parts = [item.callspec.params for item in here if hasattr(item, "callspec")]
    cases = list({each["case"]: None for each in parts})
    return dict(zip(cases, offline.findings(cases), strict=True))


@pytest.mark.parametrize("case", parameters(CASES))
def test_a_kernel_compiles_within_registers_and_shared_memory(case, found):
    kernel = found[case]
    sm = case[2]

    assert "error" not in kernel, kernel["error"]
    assert kernel["target"] == TARGETS[sm]
    assert kernel["spills"] <= SPILLS.get((case[0], sm), 0)
    assert kernel["shared"] <= SHARED[sm]
    if INSTRUCTION[case]:
        assert any(re.search(INSTRUCTION[case], each) for each in kernel["instructions"])


def test_each_sm_and_a_kernel_that_decodes_are_compiled_by_default():
    assert {sm for *_, sm in BY_DEFAULT} == {*TARGETS}
    assert {name for name, *_ in BY_DEFAULT} == {name for name, *_ in CASES}
    assert BY_DEFAULT & {*DECODING}


@pytest.mark.parametrize("case", parameters(DECODING))
def test_decoding_takes_few_instructions_a_weight(case, found):
    """A warp with few rows, or many columns, has more loads and products for each weight; on SM 9.0
    one instruction of four warps does all products."""
    name, signature, sm = case
    *_, BLOCK_N, BLOCK_M = read(signature)[0]
    most = MOST[sm] + (0.5 if sm != 90 and (int(BLOCK_N) > 32 or int(BLOCK_M) < 128) else 0)

    assert found[case]["loop"] <= most * numbers_a_lane(name, signature)
