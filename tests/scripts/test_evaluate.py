"""The evaluation of answers, free and constrained, on the built-in model."""

import argparse
import json

import evaluate
import pytest
from training.lessons import exams


def test_the_constraint_makes_all_answers_valid_and_more_of_them_right(built_in):
    samples = exams(8, 3)["same patterns"]
    args = argparse.Namespace(seed=3, max_tokens=96)
    free, _ = evaluate.measure(built_in, "canvas", "extraction", samples, False, args)
    bound, _ = evaluate.measure(built_in, "canvas", "extraction", samples, True, args)
    assert free.valid < 8
    assert bound.valid == 8
    assert bound.truncated == []
    assert bound.exact > free.exact
    assert bound.fields > free.fields
    assert bound.calls < free.calls


def test_each_set_is_answered_in_both_ways_free_and_constrained(run_command):
    out = run_command(evaluate, "--prompts", 1, "--only", "choices", "--json").out
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["decoding"], row["constrained"]) for row in rows] == [
        (decoding, constrained)
        for decoding in ("canvas", "drafted")
        for constrained in (False, True)
    ]
    assert {row["kind"] for row in rows} == {"choices"}


def test_sets_are_chosen_by_a_part_of_their_names():
    sets = exams(2, 0)
    assert [*evaluate.chosen(sets, ["patterns"])] == ["same patterns", "held-out patterns"]
    assert evaluate.chosen(sets, [""]) == sets


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--prompts", "0"], "--prompts is 0: it takes at least 1"),
        (["--prompts", "-1"], "--prompts is -1: it takes at least 1"),
        (["--only", "made-up", "x y"], "no set's name holds 'x y': there are same patterns, "),
        (["--model", "/nope"], "no model directory at /nope"),
    ],
)
def test_bad_usage_is_refused_before_prompts_are_drawn(monkeypatch, refusal_of, flags, problem):
    monkeypatch.setattr(evaluate, "exams", lambda count, seed: {1: exams(1, seed)}[count])
    assert problem in refusal_of(evaluate, *flags)
