"""Training: an interrupted run ends as one without interruption, and its files are a model."""

import itertools
import json
import re
import shutil
import sys
from pathlib import Path
from random import Random

import pytest
import torch
import train_tiny
from evaluation.values import leaves
from safetensors.torch import load_file, save_file
from training import batches, directory, steps
from training.extraction import extract
from training.lessons import sample
from transformers import AutoTokenizer

from dlm.engine import BUILT_IN
from dlm.models import checkpoint
from dlm.models.experts import Experts

NEURONS = 64


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """The first two layers of the built-in checkpoint, narrower, for quick steps."""
    out = tmp_path_factory.mktemp("small") / "checkpoint"
    shutil.copytree(BUILT_IN, out)
    config = json.loads((out / "config.json").read_text())
    text = config["text_config"]
    wide = text["intermediate_size"]
    text |= {"num_hidden_layers": 2, "layer_types": text["layer_types"][:2]}
    text["intermediate_size"] = NEURONS
    text["per_layer_config"] = {"1": text["per_layer_config"]["1"]}
    (out / "config.json").write_text(json.dumps(config))
    weights = load_file(out / "model.safetensors")
    kept = {k: w for k, w in weights.items() if not re.search(r"\.layers\.[2-9]\.", k)}
    for name, matrix in kept.items():
        if name.endswith(("gate_proj.weight", "up_proj.weight")) and len(matrix) == wide:
            kept[name] = matrix[:NEURONS].clone()
        elif name.endswith("down_proj.weight") and matrix.shape[-1] == wide:
            kept[name] = matrix[:, :NEURONS].clone()
    save_file(kept, out / "model.safetensors")
    return out


def trained(small, out, *options: str, stop: int | None = None) -> Path:
    """Run a few small steps into a folder; `stop` interrupts before that step."""
    config = json.loads((small / "config.json").read_text())
    if not out.exists() and "--warm" not in options:
        shutil.copytree(small, out)
    given = ["--steps", "2", "--batch", "2", "--save", "1", "--out", str(out), *options]
    real, calls = train_tiny.loss, itertools.count()

    def interrupted(*args):
        if next(calls) == stop:
            raise KeyboardInterrupt
        return real(*args)

    with pytest.MonkeyPatch.context() as now:
        now.setattr(directory, "hf_config", lambda: config)
        now.setattr(sys, "argv", ["train_tiny.py", "--device", "cpu", *given])
        now.setattr(train_tiny, "loss", interrupted)
        train_tiny.main()
    return out


@pytest.fixture
def run(tmp_path, small):
    """Run a few small steps into a folder of this name."""
    return lambda name, *options, **more: trained(small, tmp_path / name, *options, **more)


@pytest.fixture(scope="module")
def straight(tmp_path_factory, small) -> Path:
    """The folder of an uninterrupted run. Tests do not change it."""
    return trained(small, tmp_path_factory.mktemp("straight") / "out")


def test_an_interrupted_run_ends_as_an_uninterrupted_one(run, straight):
    expected = load_file(straight / "model.safetensors")
    with pytest.raises(KeyboardInterrupt):
        run("interrupted", stop=1)
    resumed = load_file(run("interrupted") / "model.safetensors")
    assert expected.keys() == resumed.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, resumed[name]), name


def test_the_written_files_are_a_checkpoint_in_bf16(straight, small):
    before = load_file(small / "model.safetensors")
    after = load_file(straight / "model.safetensors")
    assert {tensor.dtype for tensor in after.values()} == {torch.bfloat16}
    name = "model.decoder.layers.0.mlp.gate_proj.weight"
    assert not torch.equal(before[name], after[name])
    checkpoint.load(straight)


@pytest.mark.parametrize("layers", [(), ("--bf16",)])
def test_a_warm_start_continues_from_the_given_weights(run, small, layers):
    """One step moves them a little; weights of a fresh start would be far away."""
    before = load_file(small / "model.safetensors")
    out = run("warm", "--warm", str(small), "--steps", "1", "--peak", "0.01", *layers)
    after = load_file(out / "model.safetensors")
    name = "model.decoder.layers.0.mlp.gate_proj.weight"
    moved = (after[name].float() - before[name].float()).norm() / before[name].float().norm()
    assert 0 < moved < 0.05
    assert (out / "tokenizer.json").read_text() == (BUILT_IN / "tokenizer.json").read_text()


def test_a_warm_start_from_another_run_s_folder_is_a_run_of_its_own(run, straight):
    assert torch.load(straight / "training.pt", weights_only=True)["step"] == 2
    out = run("warm", "--warm", str(straight), "--steps", "1")
    assert torch.load(out / "training.pt", weights_only=True)["step"] == 1


def test_a_budget_in_minutes_ends_the_run(run):
    out = run("short", "--steps", "1000", "--minutes", "0.0001")
    assert torch.load(out / "training.pt", weights_only=True)["step"] == 1


def test_weights_are_kept_between_checkpoints_by_time_too(run, small):
    often = run("often", "--save", "100", "--save-minutes", "0", "--steps", "1")
    assert (often / "model.safetensors").read_bytes() != (small / "model.safetensors").read_bytes()


def test_a_longer_context_trains_on_long_texts_and_is_written_to_the_config(run):
    out = run("long", "--context", "768", "--steps", "1", "--batch", "1", "--pool", "1")
    config = json.loads((out / "config.json").read_text())
    assert config["text_config"]["max_position_embeddings"] == 2048
    assert checkpoint.load(out).max_positions == 2048


def test_one_batch_of_a_shelf_has_long_texts_and_no_more_scores_of_attention_than_the_others():
    source = batches.BatchSource(directory=BUILT_IN, seed=1, size=16, context=1536)
    made = batches.shelf(source, 0, 0.0)
    assert len(made) == batches.SHELF
    lengths = [int(batch.lengths.max()) for batch in made]
    (long,) = (batch for batch in made if batch.lengths.max() > batches.MAX_TOKENS)
    assert max(lengths) <= 1536
    assert long.tokens.shape[0] == 1
    assert all(len(batch.lengths) == 16 for batch in made if batch is not long)


def test_the_rate_falls_to_nothing_at_the_end_of_the_budget():
    assert steps.rate(0, 0.0) == 1 / steps.RISE
    assert steps.rate(500, 0.0) == 1
    assert steps.rate(500, 0.65) == pytest.approx(0.35)
    assert steps.rate(500, 0.999) == 0.01


@pytest.mark.exhaustive
def test_batches_do_not_depend_on_the_first_step_or_on_the_number_of_workers():
    source = batches.BatchSource(directory=BUILT_IN, seed=3, size=2)

    def made(first, workers, count):
        found = batches.batches(source, first, steps.copying, workers)
        return [batch.tokens.tolist() for batch in itertools.islice(found, count)]

    straight = made(0, 0, 3)
    assert made(1, 0, 2) == straight[1:]
    assert made(0, 1, 3) == straight


def test_all_experts_on_every_token_compute_what_the_chosen_ones_compute(rng):
    model = checkpoint.load(BUILT_IN)
    x = torch.randn(40, model.config.hidden_size, generator=rng)
    for layer in model.layers:
        weight, expert = layer.router(x)
        expected = Experts.forward(layer.experts, x, weight, expert)
        found = steps.all_experts(layer.experts, x, weight, expert)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_either_the_prompt_or_the_answer_opens_the_thought_channel():
    tokenizer = AutoTokenizer.from_pretrained(BUILT_IN)
    opened = tokenizer.encode(batches.EMPTY_THOUGHT, add_special_tokens=False)
    for seed in range(60):
        random = Random(seed)
        item = sample(random, "train")
        prompt, answer, _ = batches.encode(tokenizer, item, random)
        assert (prompt[-len(opened) :] == opened) + (answer[:1] == opened[:1]) == 1
        assert answer[-1] in (50, 106)


@pytest.mark.parametrize("seed", range(8))
def test_keys_that_only_the_schema_has_are_given(seed):
    tokenizer = AutoTokenizer.from_pretrained(BUILT_IN)
    random = Random(seed)
    item = extract(random, "heldout", unasked=1.0)
    _, answer, given = batches.encode(tokenizer, item, random)
    known, rest = (
        tokenizer.decode([t for t, g in zip(answer, given, strict=True) if g == which])
        for which in (True, False)
    )
    for key in item.unasked:
        assert key in known
        assert f'"{key}":' not in rest
    assert '"' not in known
    for _, leaf in leaves(item.value):
        if isinstance(leaf, str):
            assert json.dumps(leaf, ensure_ascii=False) in rest
