"""Training of a masked model: an interrupted run goes on, and its files are a checkpoint."""

import json
import sys

import pytest
import torch
import train_masked
from safetensors.torch import load_file
from training import conversion

from dlm import Engine, JsonSchema, Request
from dlm.models.families import BUILT_IN


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a few small steps into a folder of this name."""

    monkeypatch.setattr(train_masked, "MEASURED", 2)

    def train(name, *options):
        flags = ["--batch", "2", "--pool", "2", "--device", "cpu", "--save", "1"]
        out = tmp_path / name
        monkeypatch.setattr(sys, "argv", ["train_masked.py", *flags, "--out", str(out), *options])
        train_masked.main()
        return out

    return train


def test_a_run_in_two_parts_ends_as_one_run(run):
    straight = load_file(run("straight", "--steps", "2") / "model.safetensors")
    run("parts", "--steps", "1")
    out = run("parts", "--steps", "2")
    assert torch.load(out / "training.pt", weights_only=True)["step"] == 2
    parts = load_file(out / "model.safetensors")
    assert parts.keys() == straight.keys()
    assert {tensor.dtype for tensor in parts.values()} == {torch.bfloat16}
    for name, tensor in straight.items():
        assert torch.equal(tensor, parts[name]), name


def test_the_conversion_is_measured_on_samples_of_all_lengths(monkeypatch):
    measured = []
    monkeypatch.setattr(conversion, "convert", lambda _, __, batch, ___: measured.append(batch))
    for _ in range(2):
        train_masked.inherit(train_masked.initialised(), 5)
    lengths, again = (batch.lengths for batch in measured)
    assert torch.equal(lengths, again)
    assert len(lengths) == train_masked.MEASURED
    assert lengths.max() > 2 * lengths.min()


def test_the_files_are_a_model_directory_that_an_engine_loads(run):
    out = run("files", "--steps", "1")
    assert (out / "tokenizer.json").read_bytes() == (BUILT_IN / "tokenizer.json").read_bytes()
    engine = Engine.load(out, slots=1)
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    request = Request(prompt="Is it so?", constraint=JsonSchema(schema), max_tokens=12)
    assert type(json.loads(engine.generate(request).text)["a"]) is bool
    engine.close()
