"""The engine beside transformers' own loop: answers, and the time and memory of a step."""

import argparse

import pytest
import torch
from evaluation import transformers
from evaluation.tasks import extractions
from invoices import SCHEMA_FILE
from transformers import DiffusionGemmaForBlockDiffusion

from dlm.engine import BUILT_IN


@pytest.mark.exhaustive
def test_answers_have_the_distribution_of_transformers_and_the_constraint_makes_them_valid():
    rows = transformers.compare(str(BUILT_IN), extractions(6, 1), max_tokens=64)
    ours, theirs, *constrained = rows
    assert transformers.likeness(rows) > 0.0005
    assert 0.8 < ours.passes / theirs.passes < 1.25
    assert [(row.by, row.valid) for row in constrained] == [("dlm", 6), ("transformers", 6)]


def test_both_sides_measure_the_time_and_memory_of_their_steps(tmp_path):
    """A step takes at least the memory of its logits."""
    vocab = 8_000
    torch.manual_seed(0)
    DiffusionGemmaForBlockDiffusion(transformers.config(vocab)).save_pretrained(tmp_path)
    args = argparse.Namespace(model=tmp_path, schema=SCHEMA_FILE, tokenizer=None)
    for side in transformers.SIDES.values():
        run = side(args)
        run(1)
        found = run(2)
        assert found["seconds_per_step"] > 0
        assert found["peak_bytes"] > 4 * transformers.L * vocab
