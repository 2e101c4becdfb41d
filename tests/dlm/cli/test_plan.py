"""The command that plans: from a directory or a config alone, as tables or as data."""

import json
import sys
from pathlib import Path

import pytest

import dlm.models
from dlm.cli import plan

TINY = Path(dlm.models.__file__).parent / "tiny"
BIG = Path(__file__).parents[3] / "examples" / "diffusiongemma-26b-a4b.json"


def run(monkeypatch, capsys, *args: str) -> str:
    monkeypatch.setattr(sys, "argv", ["plan.py", *args])
    plan.main()
    return capsys.readouterr().out


def test_a_directory_and_its_config_give_the_same_data(monkeypatch, capsys, tmp_path):
    (tmp_path / "config.json").write_text((TINY / "config.json").read_text())
    one, other = (
        json.loads(run(monkeypatch, capsys, "--model", str(path), "--slots", "2", "--json"))
        for path in (tmp_path, TINY / "config.json")
    )
    assert one == other
    load = {"slots": 2, "context": 8192, "cache": "fp8", "weights": "nvfp4"}
    assert one["load"] == {**load, "activation_bits": 16}
    assert sum(one["weights"].values()) < one["total"]
    assert one["fits"].keys() == {"24 GB", "32 GB", "96 GB", "141 GB"}
    assert "vision tower" in one["counted"]


def test_fields_that_transformers_fills_in_may_be_left_out(monkeypatch, capsys, tmp_path):
    """So are layers and rotary embeddings of the 26B's config: it plans the same without."""
    whole = json.loads(BIG.read_text())
    for name in ("layer_types", "rope_parameters", "global_head_dim"):
        del whole["text_config"][name]
    (tmp_path / "config.json").write_text(json.dumps(whole))
    one, other = (
        json.loads(run(monkeypatch, capsys, "--model", str(path), "--json"))
        for path in (tmp_path, BIG)
    )
    assert one == other


def test_tables_tell_the_same_to_people(monkeypatch, capsys):
    out = run(monkeypatch, capsys, "--model", str(TINY), "--kv", "bf16", "--weights", "bf16")
    assert "Slots: 8, of 8,192 tokens each. Cache: bf16. Experts: bf16, activations of 16" in out
    for words in ("weights: experts, 0.00 billion", "largest transient: dense", "RTX 5090"):
        assert words in out


def test_with_activations_of_four_bits_steps_are_those_of_gpus_that_multiply_them(
    monkeypatch, capsys
):
    args = "--model", str(BIG), "--slots", "16", "--json"
    one, four = (
        json.loads(run(monkeypatch, capsys, *args, "--activation-bits", bits))
        for bits in ("16", "4")
    )
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
        (["--model", str(TINY), "--slots", "0"], "slots is 0: it takes at least 1"),
        (["--model", str(TINY / "generation_config.json")], "model_type is None"),
        (
            ["--model", str(TINY), "--weights", "bf16", "--activation-bits", "4"],
            "activation_bits=4 is for experts in nvfp4, not in bf16",
        ),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(monkeypatch, capsys, args, problem):
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, capsys, *args)
    err = capsys.readouterr().err
    assert end.value.code == 2
    assert problem in err
    assert err.count("\n") == 1
