"""The engine beside transformers' own loop: answers, and the time and memory of a step."""

import argparse

import compare_transformers
import pytest
import torch
from invoices import SCHEMA_FILE
from transformers import DiffusionGemmaForBlockDiffusion

from dlm.engine import BUILT_IN


@pytest.mark.exhaustive
def test_unconstrained_answers_have_the_distribution_of_transformers():
    found = compare_transformers.compare(str(BUILT_IN), prompts=6, seed=1, max_tokens=64)
    assert found["standard_errors_apart"] < 3.5
    assert 0.8 < found["calls"] / found["calls_transformers"] < 1.25


def test_both_sides_measure_the_time_and_memory_of_their_steps(tmp_path):
    """A step takes at least the memory of its logits."""
    vocab = 8_000
    torch.manual_seed(0)
    DiffusionGemmaForBlockDiffusion(compare_transformers.config(vocab)).save_pretrained(tmp_path)
    args = argparse.Namespace(model=tmp_path, schema=SCHEMA_FILE, tokenizer=None)
    for side in compare_transformers.SIDES.values():
        run = side(args)
        run(1)
        found = run(2)
        assert found["seconds_per_step"] > 0
        assert found["peak_bytes"] > 4 * compare_transformers.L * vocab
