"""What the engine is for, measured on the built-in model."""

import argparse
from random import Random

import compare_transformers
import evaluate
from tiny_data import extract

from dlm.engine import BUILT_IN


def test_the_constraint_makes_all_answers_valid_and_more_of_them_right(built_in):
    samples = [extract(Random(f"test/{i}"), "heldout") for i in range(60)]
    args = argparse.Namespace(seed=0, max_tokens=160)
    free, _ = evaluate.measure(built_in, samples, False, args)
    bound, _ = evaluate.measure(built_in, samples, True, args)
    assert free.valid < 54  # the habit: fences
    assert bound.valid == 60 - len(bound.truncated)
    assert len(bound.truncated) <= 2
    assert bound.exact > free.exact
    assert bound.calls < free.calls


def test_unconstrained_we_are_transformers_in_distribution():
    found = compare_transformers.compare(str(BUILT_IN), prompts=30, seed=1, max_tokens=96)
    assert found["standard_errors_apart"] < 3.5
    assert 0.8 < found["calls"] / found["calls_transformers"] < 1.25


def test_exact_forgives_a_fence_and_nothing_else():
    item = extract(Random(0), "heldout")
    assert evaluate.is_exact(item.answer, item)
    assert evaluate.is_exact(f"```json\n{evaluate.json.dumps(item.value)}\n```", item)
    assert not evaluate.is_exact("{}", item)
    assert not evaluate.is_exact("no JSON", item)


def test_true_is_not_one():
    item = next(s for s in (extract(Random(i), "train") for i in range(99)) if "paid" in s.value)
    swapped = {k: int(v) if isinstance(v, bool) else v for k, v in item.value.items()}
    assert not evaluate.is_exact(evaluate.json.dumps(swapped), item)
