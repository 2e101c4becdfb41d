"""What the comparison of policies measures, on the built-in model."""

import argparse
from dataclasses import replace
from random import Random

import evaluate_policies

import dlm


def test_a_policy_is_measured_on_each_kind_and_on_all_together(built_in):
    random = Random(0)
    tasks = [evaluate_policies.MAKERS[kind](random) for kind in evaluate_policies.kinds_of(8)]
    tasks[3] = replace(tasks[3], spec=dlm.JsonObject())
    while "number" in str(tasks[7].spec.source):  # its automaton takes a second
        tasks[7] = evaluate_policies.by_schema(random)
    small = [evaluate_policies.is_small(built_in, task) for task in tasks]
    assert small == [True, True, True, False, *[True] * 4]
    config = replace(built_in.config, policy="exact")
    engine = dlm.Engine(built_in.model, built_in.chat, config)
    args = argparse.Namespace(seed=0, max_tokens=160)
    rows = {r.kind: r for r in evaluate_policies.measure(engine, "exact", tasks, small, args)}
    engine.close()
    assert [*rows] == ["choice", "regex", "enum", "schema", "all"]
    assert (rows["schema"].prompts, rows["schema"].too_large) == (1, 1)
    assert rows["all"].prompts == rows["all"].valid == 7
    assert rows["choice"].exact + rows["regex"].exact >= 3
    assert rows["choice"].mass > 10 * rows["enum"].mass  # quotes are not what it would say
