"""What the engine is for, measured on the built-in model."""

import argparse
import json
import sys

import evaluate
import pytest
from commands import ended
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


def test_each_set_is_answered_in_both_ways_free_and_constrained(monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["evaluate.py", "--prompts", "1", "--only", "choices", "--json"]
    )
    evaluate.main()
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["decoding"], row["constrained"]) for row in rows] == [
        (decoding, constrained)
        for decoding in ("canvas", "drafted")
        for constrained in (False, True)
    ]
    assert {row["kind"] for row in rows} == {"choices"}


def test_sets_are_chosen_by_a_part_of_their_names(capsys):
    sets = exams(2, 0)
    assert [*evaluate.chosen(sets, ["patterns"])] == ["same patterns", "held-out patterns"]
    assert evaluate.chosen(sets, [""]) == sets
    with pytest.raises(SystemExit) as end:
        evaluate.chosen(sets, ["made-up", "x y"])
    assert end.value.code == 2
    assert "no set's name holds 'x y': there are same patterns, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--prompts", "0"], "--prompts is 0: it takes at least 1"),
        (["--prompts", "-1"], "--prompts is -1: it takes at least 1"),
        (["--only", "nope"], "no set's name holds 'nope': there are same patterns, "),
        (["--model", "/nope"], "no model directory at /nope"),
    ],
)
def test_what_cannot_be_measured_is_told_before_prompts_are_drawn(
    monkeypatch, capsys, flags, problem
):
    monkeypatch.setattr(evaluate, "exams", lambda count, seed: {1: exams(1, seed)}[count])
    assert ended(monkeypatch, evaluate, *flags) == 2
    told = capsys.readouterr().err
    assert problem in told
    assert told.count("\n") == 1
