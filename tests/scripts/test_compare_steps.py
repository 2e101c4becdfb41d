"""What a step takes is measured the same way on both sides."""

import argparse
from pathlib import Path

import compare_steps
import torch
from transformers import DiffusionGemmaForBlockDiffusion

SCHEMA = Path(__file__).parents[2] / "examples" / "invoice.json"


def test_both_sides_make_as_many_steps_as_they_say(tmp_path):
    """In this process; a step takes some time, and at the least the memory of its logits."""
    vocab = 20_000
    torch.manual_seed(0)
    DiffusionGemmaForBlockDiffusion(compare_steps.config(vocab)).save_pretrained(tmp_path)
    args = argparse.Namespace(model=tmp_path, schema=SCHEMA, tokenizer=None)
    for side in compare_steps.SIDES.values():
        run = side(args)
        run(1)
        found = run(2)
        assert found["seconds_per_step"] > 0
        assert found["peak_bytes"] > 4 * compare_steps.L * vocab
