"""Training can be stopped anywhere and goes on as if it had not been."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
import train_tiny
from safetensors.torch import load_file

import dlm.models
from dlm.models import checkpoint

TINY = Path(dlm.models.__file__).parent / "tiny"


@pytest.fixture
def train(monkeypatch, tmp_path):
    """Run a few small steps into a folder; `stop` interrupts before that step."""

    def run(name: str, stop: int | None = None) -> Path:
        out = tmp_path / name
        if not out.exists():
            shutil.copytree(TINY, out)
        options = ["--steps", "3", "--batch", "2", "--save", "1", "--out", str(out)]
        monkeypatch.setattr(sys, "argv", ["train_tiny.py", "--device", "cpu", *options])
        real, calls = train_tiny.loss, iter(range(99))

        def interrupted(*args):
            if next(calls) == stop:
                raise KeyboardInterrupt
            return real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(train_tiny, "loss", interrupted)
            train_tiny.main()
        return out

    return run


def test_an_interrupted_run_ends_where_a_straight_one_does(train):
    straight = load_file(train("straight") / "model.safetensors")
    with pytest.raises(KeyboardInterrupt):
        train("interrupted", stop=2)
    resumed = load_file(train("interrupted") / "model.safetensors")
    assert straight.keys() == resumed.keys()
    for name, tensor in straight.items():
        assert torch.equal(tensor, resumed[name]), name


def test_what_it_writes_is_a_checkpoint(train):
    before = load_file(TINY / "model.safetensors")
    out = train("out")
    after = load_file(out / "model.safetensors")
    name = "model.decoder.layers.0.mlp.gate_proj.weight"
    assert not torch.equal(before[name], after[name])
    checkpoint.load(out)


def test_a_prompt_opens_the_thought_channel_or_the_answer_does():
    from random import Random

    from tiny_data import sample
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY)
    opened = tokenizer.encode(train_tiny.EMPTY_THOUGHT, add_special_tokens=False)
    for seed in range(60):
        random = Random(seed)
        item = sample(random, "train")
        prompt, answer = train_tiny.encode(tokenizer, item, random)
        assert (prompt[-4:] == opened) + (answer[:1] == opened[:1]) == 1
        assert answer[-1] in (50, 106)
