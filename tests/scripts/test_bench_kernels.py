"""What is timed computes what it is said to; what needs no GPU works without one."""

import json
from functools import partial

import bench_kernels
import pytest
import torch
from bench_kernels import GPUS, launches, times
from commands import ended
from measure.kernel_cases import Sizes, cases

from dlm.kernels.shipped import CASES

SMALL = Sizes(
    **{"rows": 24, "canvas": 8, "context": 70, "window": 50, "vocab": 512, "hidden": 128},
    **{"dense": 192, "expert": 64, "experts": 4, "chosen": 2, "heads": 4},
    **{"sliding": (2, 32), "full": (1, 64)},
)
ALL = {
    "vocabulary pass",
    "vocabulary pass, masked",
    "NVFP4 product, W4A16",
    "NVFP4 of activations",
    "NVFP4 product, W4A4",
    "experts, bf16",
    "experts, NVFP4",
    "norms after attention",
    "norms at a layer's end, summed",
    "norms at a layer's end, by choice",
    "norms and rotation of heads",
    "GELU of a gate",
    "choice of experts",
    "sort of slots",
    "attention, sliding, bf16",
    "attention, sliding, fp8",
    "attention, full, bf16",
    "attention, full, fp8",
}


def test_kernel_reference_and_torch_alone_say_the_same():
    """But for what bf16 rounds, on the way in torch alone, at the end in all: 2^-8 each time."""
    names = set()
    for case in cases(SMALL, torch.device("cpu")):
        expected = case.reference().float()
        for said in (case.run(), case.composed()):
            assert said.shape == expected.shape
            assert (said.float() - expected).abs().max() < 0.02 * expected.abs().max(), case.name
        assert case.moved > 0
        names.add(case.name)
    assert names == ALL


def test_products_count_two_operations_for_each_pair_and_four_bits_for_each_weight():
    found = {case.name: case for case in cases(SMALL, torch.device("cpu"))}
    assert found["NVFP4 product, W4A16"].operations == 2 * 24 * 128 * 192
    assert found["experts, bf16"].operations == 2 * 24 * 2 * 3 * 128 * 64
    tokens = 2 * 24 * 128 * 2
    assert found["experts, bf16"].moved == 4 * 3 * 64 * 128 * 2 + tokens
    assert found["experts, NVFP4"].moved == 4 * 3 * 64 * 128 * 9 / 16 + 4 * 3 * 4 + tokens


def test_attention_counts_what_is_seen_of_keys_and_values():
    found = {case.name: case for case in cases(SMALL, torch.device("cpu"))}
    own = 2 * 24 * (2 * 4 + 2 * 2) * 32  # queries, results, keys and values in bf16
    assert found["attention, sliding, fp8"].moved == 3 * 49 * 2 * 2 * 32 + own
    assert found["attention, full, bf16"].operations == 4 * 24 * (70 + 8) * 4 * 64


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_timed(monkeypatch, capsys):
    assert ended(monkeypatch, bench_kernels) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "there is no CUDA device to time kernels on; --offline compiles them" in said.err


def test_offline_tells_what_each_kernel_takes_and_what_it_will_take_and_which_do_not_compile(
    monkeypatch, capsys
):
    """A kernel that does not compile is named, and counts."""
    h100 = next(gpu for gpu in GPUS if gpu.name == "H100")
    product = next(
        one for one in launches(Sizes(rows=256), h100) if one.name == "NVFP4 product, W4A16"
    )
    quantize = next(case for case in CASES if case[0] == "nvfp4._quantize_kernel")
    name, signature, _ = next(case for case in CASES if case[0].startswith("nvfp4._w4a4"))
    some = [quantize, product.case, (name, signature, 90)]
    monkeypatch.setattr(bench_kernels, "compiled", partial(bench_kernels.compiled, shipped=some))

    assert ended(monkeypatch, bench_kernels, "--offline", "--json") == 1

    told = json.loads(capsys.readouterr().out)
    *compiled, wrong = told["kernels"]
    assert [each["name"] for each in compiled] == [quantize[0], product.case[0]]
    for each in compiled:
        assert each.keys() >= {"shared", "registers", "spills", "instructions", "configuration"}
        assert each["target"] == "sm_90a"
        assert 0 < each["registers"] <= 255
        assert each["spills"] == 0
    assert wrong["name"] == name
    assert wrong["error"]
    (time,) = told["predicted"]
    assert time["device"] == "H100"
    assert time["predicted"] >= time["floor"] == max(time["bytes"], time["operations"])
    assert time["instructions_a_number"] == compiled[1]["a_number"]


def test_a_prediction_is_the_longest_of_issue_bytes_and_operations():
    """The 26B's gate and up on an H100: 128 experts of 6 blocks of 128 rows and 44 groups."""
    h100 = next(gpu for gpu in GPUS if gpu.name == "H100")
    found = {launch.case: launch for launch in launches(Sizes(), h100)}
    assert len(found) == 4
    gate_up = next(one for one in found.values() if one.name == "experts, gate_up")
    seconds = 500 * 44 * 128 * 6 * 4 / (4 * 132 * 1.75e9)
    assert times(gate_up, h100, 500)["issue"] == pytest.approx(1e6 * seconds)
    assert times(gate_up, h100, 500)["predicted"] == times(gate_up, h100, 500)["bytes"]
    assert times(gate_up, h100, 5000)["predicted"] == pytest.approx(1e7 * seconds)
    assert times(gate_up, h100, 5000)["floor"] == times(gate_up, h100, 0)["predicted"]


def test_every_launch_of_a_prediction_is_shipped():
    for rows in (256, 4096):
        for gpu in GPUS:
            assert {launch.case for launch in launches(Sizes(rows=rows), gpu)} <= {*CASES}


@pytest.mark.gpu
def test_a_gpu_times_all_that_it_runs():
    found = bench_kernels.measured(SMALL)
    assert {each["name"] for each in found["kernels"]} <= ALL
    for each in found["kernels"]:
        assert each["kernel"] > 0
        assert each["error"] < 0.02
