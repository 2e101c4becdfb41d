"""The benchmark of kernels: its cases compute one result, and all but the timing needs no GPU."""

import json
from functools import partial

import bench_kernels
import pytest
import torch
from bench_kernels import SMALL, launches, times
from measure.kernel_cases import Sizes, cases

from dlm.engine import BUILT_IN
from dlm.kernels.gpus import CARDS
from dlm.kernels.offline import CASES
from dlm.models import ModelConfig
from dlm.models.json_files import read_json

ALL = {
    "vocabulary pass",
    "vocabulary pass, masked",
    "NVFP4 product, W4A16",
    "NVFP4 of activations",
    "NVFP4 product, W4A4",
    "experts, bf16",
    "experts, NVFP4",
    "experts, W4A4",
    "norms after attention",
    "norms at a layer's end, summed",
    "norms at a layer's end, by choice",
    "norms and rotation of heads",
    "rotation and scale of heads",
    "sum and norm, a result",
    "sum and norm, by choice",
    "GELU of a gate",
    "SiLU of a gate",
    "choice of experts",
    "choice of experts in groups",
    "sort of slots",
    "attention, sliding, bf16",
    "attention, sliding, fp8",
    "attention, full, bf16",
    "attention, full, fp8",
    "attention, plain, bf16",
    "attention, plain, fp8",
}


def test_kernel_reference_and_torch_alone_have_one_result():
    """bf16 rounds by 2^-8: torch alone at each step, the others at the end. In W4A4 a last bit may
    change a code of four bits."""
    names = set()
    for case in cases(SMALL, torch.device("cpu")):
        expected = case.reference().float()
        most = (0.15 if case.name == "experts, W4A4" else 0.02) * expected.abs().max()
        for result in (case.run(), case.composed()):
            assert result.shape == expected.shape
            assert (result.float() - expected).abs().max() < most, case.name
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


def test_attention_counts_the_visible_keys_and_values():
    found = {case.name: case for case in cases(SMALL, torch.device("cpu"))}
    own = 2 * 24 * (2 * 4 + 2 * 2) * 32  # queries, results, keys and values in bf16
    assert found["attention, sliding, fp8"].moved == 3 * 49 * 2 * 2 * 32 + own
    assert found["attention, full, bf16"].operations == 4 * 24 * (70 + 8) * 4 * 64


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_timed(refusal_of):
    problem = "there is no CUDA device to time kernels on; --offline compiles them"
    assert problem in refusal_of(bench_kernels)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file"),
        ("[", "holds no JSON object"),
        ('{"steps": []}', "must be what bench_kernels.py --json prints"),
        ('{"kernels": [{"name": "GELU"}]}', "a list of rows with name and shape"),
    ],
)
def test_a_file_of_no_earlier_run_is_refused_before_anything_is_timed(
    content, problem, monkeypatch, refusal_of, tmp_path
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(bench_kernels, "measured", lambda *args: pytest.fail("timed"))
    earlier = tmp_path / "earlier.json"
    if content is not None:
        earlier.write_text(content)
    assert problem in refusal_of(bench_kernels, "--beside", earlier)


def test_references_at_small_sizes_are_timed_on_a_cpu_and_written_as_they_come(
    run_command, tmp_path
):
    out = tmp_path / "kernels.json"
    printed = json.loads(run_command(bench_kernels, "--small", "--json", "--out", out).out)
    assert printed == json.loads(out.read_text())
    assert {row["name"] for row in printed["kernels"]} == ALL
    assert all(min(row["kernel"], row["torch"], row["best"]) > 0 for row in printed["kernels"])


def test_measured_times_alone_are_compared_with_an_earlier_run(
    monkeypatch, run_command, refusal_of, tmp_path
):
    row = {"name": "GELU", "shape": "8 x 64", "best": 1.0, "share_of_best": 0.1, "error": 0.0}
    whole = {"device": "card", "commit": "1", "torch": "2", "triton": "3"}
    whole |= {"copy_bytes_per_second": 1e12, "bf16_operations_per_second": 1e14}
    earlier = whole | {"kernels": [row | {"kernel": 20.0, "torch": 40.0}], "device": "another card"}
    file = tmp_path / "earlier.json"
    file.write_text(json.dumps(earlier))
    now = whole | {"kernels": [row | {"kernel": 10.0, "torch": 50.0}]}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(bench_kernels, "measured", lambda *args: now)
    out = run_command(bench_kernels, "--beside", file).out
    assert "10.0 (-50.0 %)" in out
    assert "50.0 (+25.0 %)" in out
    assert "other settings: device was another card, is card\n" in out
    refusal = refusal_of(bench_kernels, "--beside", file, "--offline")
    assert "--beside compares measured times" in refusal


@pytest.mark.exhaustive
def test_offline_reports_resources_and_predicted_times_and_kernels_that_do_not_compile(
    monkeypatch, run_command
):
    h100 = next(card for card in CARDS if card.name == "H100")
    product = next(
        one for one in launches(Sizes(rows=256), h100) if one.name == "NVFP4 product, W4A16"
    )
    quantize = next(case for case in CASES if case[0] == "nvfp4._quantize_kernel")
    name, signature, _ = next(case for case in CASES if case[0].startswith("nvfp4._w4a4"))
    some = [quantize, product.case, (name, signature, 90)]
    monkeypatch.setattr(bench_kernels, "compiled", partial(bench_kernels.compiled, shipped=some))

    code, out, _ = run_command(bench_kernels, "--offline", "--json")

    assert code == 1
    report = json.loads(out)
    *compiled, wrong = report["kernels"]
    assert [each["name"] for each in compiled] == [quantize[0], product.case[0]]
    for each in compiled:
        assert each.keys() >= {"shared", "registers", "spills", "instructions", "configuration"}
        assert each["target"] == "sm_90a"
        assert 0 < each["registers"] <= 255
        assert each["spills"] == 0
    assert wrong["name"] == name
    assert wrong["error"]
    time = next(one for one in report["predicted"] if one["device"] == "H100")
    assert {one["device"] for one in report["predicted"]} == {"H100", "H200"}, "both of SM 9.0"
    assert time["predicted"] >= time["floor"] == max(time["bytes"], time["operations"])
    assert time["instructions_a_number"] == compiled[1]["a_number"]


def test_a_prediction_is_the_longest_of_issue_bytes_and_operations():
    """The 26B's gate and up on an H100: 128 experts of 6 blocks of 128 rows and 44 groups."""
    h100 = next(card for card in CARDS if card.name == "H100")
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
        for card in CARDS:
            assert {launch.case for launch in launches(Sizes(rows=rows), card)} <= {*CASES}


@pytest.mark.gpu
def test_a_gpu_times_all_kernels_that_it_can_run():
    found = bench_kernels.measured(SMALL, bench_kernels.Timer(torch.device("cuda")))
    assert {each["name"] for each in found["kernels"]} <= ALL
    for each in found["kernels"]:
        assert each["kernel"] > 0
        assert each["error"] < 0.02


def test_every_candidate_is_timed_and_that_of_the_rule_is_marked(monkeypatch, capsys):
    runs = []

    def of_kernel(timer, run):
        runs.append(run)
        if len(runs) == 2:
            raise RuntimeError("out of resource: shared memory")
        return 1.5

    monkeypatch.setattr(bench_kernels.Timer, "of_kernel", of_kernel)
    config = ModelConfig.from_hf(read_json(BUILT_IN / "config.json"))
    timer = bench_kernels.Timer(torch.device("cpu"))
    rows = [*bench_kernels.timed_configurations(config, 1, timer)]
    assert len(rows) == len(runs) > 4
    assert [row["microseconds"] is None for row in rows] == [i == 1 for i in range(len(rows))]
    assert "out of resource" in capsys.readouterr().err
    shapes = {(row["kernel"], *row["shape"].values()) for row in rows}
    assert sum(row["by_rule"] for row in rows) == len(shapes)
    bench_kernels.show_configurations(
        {**bench_kernels.setting(timer.device), "configurations": rows}
    )
    assert capsys.readouterr().out.count("*") == len(shapes)
