"""The command that plans: from a directory or a config alone, as tables or as data."""

import json
from pathlib import Path

import pytest

from dlm.cli import plan
from dlm.engine import BUILT_IN

EXAMPLES = Path(__file__).parents[3] / "examples"
BIG = EXAMPLES / "diffusiongemma-26b-a4b.json"


@pytest.fixture
def planned(run_command):
    """Run the command: the data that it prints."""

    def planned(model, *args):
        code, out, err = run_command(plan, "--model", model, *args, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return planned


def test_a_directory_and_its_config_give_the_same_data(planned, tmp_path):
    (tmp_path / "config.json").write_text((BUILT_IN / "config.json").read_text())
    one, other = (planned(path, "--slots", 2) for path in (tmp_path, BUILT_IN / "config.json"))
    assert one == other
    load = {"slots": 2, "context": 8192, "cache": "fp8", "weights": "nvfp4"}
    assert one["load"] == {**load, "activation_bits": 16}
    assert sum(one["weights"].values()) < one["total"]
    assert one["fits"].keys() == {"24 GB", "32 GB", "96 GB", "141 GB"}
    assert "vision tower" in one["counted"]


def test_layers_and_rotary_embeddings_that_transformers_fills_in_may_be_left_out(planned, tmp_path):
    whole = json.loads(BIG.read_text())
    for name in ("layer_types", "rope_parameters", "global_head_dim"):
        del whole["text_config"][name]
    (tmp_path / "config.json").write_text(json.dumps(whole))
    assert planned(tmp_path) == planned(BIG)


def test_operations_without_a_kernel_at_a_model_s_shapes_are_named(planned, run_command, tmp_path):
    small = EXAMPLES / "nemotron-labs-diffusion-3b.json"
    assert planned(small)["by_torch"] == planned(BIG)["by_torch"] == {}
    out = run_command(plan, "--model", small).out
    assert "kernels compute all operations, and passes are captured as CUDA graphs" in out
    odd = tmp_path / "config.json"
    odd.write_text(json.dumps(json.loads(small.read_text()) | {"head_dim": 96}))
    why = "heads of 96 numbers are none of [16, 32, 64, 128, 256, 512]"
    assert planned(odd)["by_torch"] == {"attention": why}
    out = " ".join(run_command(plan, "--model", odd).out.split())
    assert f"On a GPU: torch computes attention: {why}. Passes are not captured" in out


def test_tables_show_the_data_to_people(run_command):
    out = run_command(plan, "--model", BUILT_IN, "--kv", "bf16", "--weights", "bf16").out
    assert "Slots: 8, of 8,192 tokens each. Cache: bf16. Experts: bf16, activations of 16" in out
    for words in ("weights: experts, 0.00 billion", "largest transient: dense", "RTX 5090"):
        assert words in out


def test_with_activations_of_four_bits_steps_are_those_of_gpus_that_multiply_them(planned):
    one, four = (planned(BIG, "--slots", 16, "--activation-bits", bits) for bits in (16, 4))
    assert four["step"].keys() == {"RTX PRO 6000", "RTX 5090"} < one["step"].keys()
    for card, parts in four["step"].items():
        for name, times in parts.items():
            if name == "experts":
                assert times["memory"] == one["step"][card][name]["memory"]
                assert times["arithmetic"] < one["step"][card][name]["arithmetic"] / 3
            elif name != "step":
                assert times == one["step"][card][name]
        assert parts["step"] < one["step"][card]["step"]


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["--model", "/no/such/place"], "there is no directory or file /no/such/place"),
        (["--model", BUILT_IN, "--slots", 0], "--slots must be from 1 to 1,000,000, got 0"),
        (["--model", BUILT_IN, "--slots", 10**18], "--slots must be from 1 to 1,000,000, got 1000"),
        (["--model", BUILT_IN, "--context", 10**18], "--context must be from 0 to 2,147,483,647"),
        (["--model", BUILT_IN, "--context", -1], "--context must be from 0 to 2,147,483,647"),
        (["--model", BUILT_IN / "generation_config.json"], "model_type is None"),
        (
            ["--model", BUILT_IN, "--weights", "bf16", "--activation-bits", 4],
            "activation_bits=4 is for experts in nvfp4, not in bf16",
        ),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(refusal_of, args, problem):
    assert problem in refusal_of(plan, *args)
