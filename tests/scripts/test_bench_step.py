"""The benchmark of a step with random weights: it runs on a CPU too, and reports its settings."""

import argparse
import json
import re
from pathlib import Path

import bench_step
import pytest
import torch
from bench_step import random_model

from dlm.engine import BUILT_IN
from dlm.kernels.gpus import card_of
from dlm.models import ModelConfig, plan
from dlm.models.backends import Dispatch
from dlm.models.diffusion_gemma.layout import LAYOUT
from dlm.models.json_files import read_json

CONFIG = BUILT_IN / "config.json"
BIG = Path(__file__).parents[2] / "examples" / "diffusiongemma-26b-a4b.json"
ARGS = "--config", CONFIG, "--device", "cpu", "--context", 9, "--steps", 2


@pytest.fixture(autouse=True)
def one_round(monkeypatch):
    monkeypatch.setattr(bench_step, "ROUNDS", 1)


@pytest.mark.parametrize(
    ("weights", "kv", "more"),
    [("nvfp4", "fp8", ()), ("bf16", "fp32", ("--tokenizer", BUILT_IN / "tokenizer.json"))],
    ids=["nvfp4", "bf16 and another tokenizer"],
)
def test_every_slot_is_timed_with_a_schema_and_without(weights, kv, more, run_command):
    flags = "--slots", "1,4", "--weights", weights, "--kv", kv, "--json", *more
    found = json.loads(run_command(bench_step, *ARGS, *flags).out)
    assert (found["device"], found["weights"], found["kv"]) == ("cpu", weights, kv)
    assert found["backends"]["experts"] == "torch"
    rows = [(row["slots"], row["mode"]) for row in found["steps"]]
    assert rows == [(1, "free"), (1, "constrained"), (4, "free"), (4, "constrained")]
    assert all(row["milliseconds"] > 0 for row in found["steps"])
    assert all(row["graphs"].startswith("eager: cpu") for row in found["steps"])


@pytest.fixture
def printed(run_command):
    """Run the benchmark of one slot: its stdout."""

    def printed(*args):
        code, out, err = run_command(bench_step, *ARGS, "--slots", 1, *args)
        assert code == 0, err
        return out

    return printed


def test_each_figure_has_its_change_since_an_earlier_run(printed, tmp_path):
    earlier = json.loads(printed("--json"))
    earlier["steps"][0]["milliseconds"] = 1e-6
    del earlier["steps"][1]
    (tmp_path / "earlier.json").write_text(json.dumps(earlier))
    beside = "--beside", tmp_path / "earlier.json"
    out = printed(*beside)
    assert re.search(r"free .*\(\+\d+\.\d %\)", out)
    assert re.search(r"constrained .*\d \(-\)", out), "that row is new"
    assert "other settings" not in out
    assert "experts by torch" in out
    found = json.loads(printed(*beside, "--json"))
    free, constrained = (row["changes"] for row in found["steps"])
    row = found["steps"][0]
    assert free["milliseconds"] == pytest.approx(100 * (row["milliseconds"] - 1e-6) / 1e-6)
    assert free["peak_bytes"] is None, "there is no peak on a CPU"
    assert {*constrained.values()} == {None}
    assert found["differs"] == []


def test_other_settings_are_named_and_compared_all_the_same(printed, tmp_path):
    earlier = json.loads(printed("--json"))
    earlier |= {"context": 1024, "device": "NVIDIA H100 80GB HBM3"}
    earlier["model"]["hidden"] = 2816
    del earlier["kv"]
    (tmp_path / "earlier.json").write_text(json.dumps(earlier))
    out = printed("--beside", tmp_path / "earlier.json")
    for line in (
        "context was 1024, is 9",
        "device was NVIDIA H100 80GB HBM3, is cpu",
        "model.hidden was 2816, is 192",
        "kv was not recorded, is fp8",
    ):
        assert f"other settings: {line}\n" in out
    assert out.count("other settings") == 4
    assert " %)" in out


def test_a_known_card_has_a_floor_and_another_has_none():
    model = LAYOUT.unfilled(ModelConfig.from_hf(read_json(BIG)), "nvfp4")
    args = argparse.Namespace(kv="fp8", weights="nvfp4", context=1024, activation_bits=16)
    one, sixteen = (bench_step.floor_of(model, n, args, "NVIDIA H100 80GB HBM3") for n in (1, 16))
    load = plan.Load(slots=1, context=1024)
    assert one == plan.step_times(model.costs, load, card_of("NVIDIA H100 80GB HBM3"))["step"]
    assert one < sixteen < 16 * one
    assert bench_step.floor_of(model, 1, args, "NVIDIA H100 PCIe") is None
    args.kv = "fp32"
    assert bench_step.floor_of(model, 1, args, "NVIDIA H100 80GB HBM3") is None


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("--slots", "0"), "must be numbers from 1 on"),
        (("--slots", "two"), "two"),
        (("--context", "0"), "--context must be at least 1, got 0"),
        (("--context", "2030"), "leaves no room within 2048 tokens"),
        (("--steps", "0"), "--steps must be at least 1, got 0"),
        (("--config", "nothing.json"), "holds no nothing.json"),
        (("--schema", "nothing.json"), "nothing.json"),
        (("--tokenizer", "nothing.json"), "nothing.json"),
        (("--kernels", "triton"), "cannot run here"),
        (("--device", "abacus"), "abacus"),
        (("--beside", "nothing.json"), "--beside nothing.json cannot be read: No such file"),
        (("--beside", CONFIG), "must be what bench_step.py --json prints"),
        (("--beside", bench_step.__file__), "holds no JSON object"),
    ],
)
def test_bad_usage_is_refused_before_weights_are_made(args, problem, refusal_of):
    assert problem in refusal_of(bench_step, *ARGS, "--slots", 1, *args)


@pytest.mark.parametrize("weights", ["nvfp4", "bf16"])
def test_random_weights_are_those_that_a_plan_counts(weights):
    config = ModelConfig.from_hf(read_json(CONFIG))
    model = random_model(config, weights, Dispatch(dtype=torch.bfloat16))
    held = sum(tensor.nbytes for tensor in model.state_dict().values())
    assert held == sum(model.costs.weight_bytes().values())
    again = random_model(config, weights, Dispatch(dtype=torch.bfloat16)).state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor.view(torch.uint8), again[name].view(torch.uint8))


def test_few_tokens_share_the_probability_of_a_row():
    """A trained model has such rows too; with flat rows, candidates would not be representative."""
    config = ModelConfig.from_hf(read_json(CONFIG))
    model = random_model(config, "nvfp4", Dispatch())
    cache = model.new_cache(1)
    model.encode([[5, 6, 7]], cache, [0])
    canvas = torch.arange(config.canvas_length)[None]
    logits = model.denoise(canvas, model.no_soft_embedding()[None], cache, [0])
    probs = (model.softcapped(logits[0]) / 0.8).softmax(-1)
    assert probs.isfinite().all()
    assert (probs.topk(64).values.sum(-1) > 0.999).all()
    assert len(probs.argmax(-1).unique()) > 3
