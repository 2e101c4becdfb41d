"""What the comparison of policies measures, on the built-in model."""

import argparse
from collections import defaultdict
from dataclasses import replace
from random import Random

import evaluate_policies

import dlm


def test_a_policy_is_measured_on_each_kind_and_on_all_together(built_in):
    kinds, randoms = evaluate_policies.kinds_of(12), defaultdict(lambda: Random(0))
    tasks = [evaluate_policies.MAKERS[kind](randoms[kind]) for kind in kinds]
    tasks[3] = replace(tasks[3], spec=dlm.JsonObject())
    for i in (7, 11):
        while "number" in str(tasks[i].spec.source):  # its automaton takes a second
            tasks[i] = evaluate_policies.by_schema(randoms["schema"])
    small = [evaluate_policies.is_small(built_in, task) for task in tasks]
    assert small == [True, True, True, False, *[True] * 8]
    config = replace(built_in.config, policy="exact")
    engine = dlm.Engine(built_in.model, built_in.chat, config)
    args = argparse.Namespace(seed=0, max_tokens=160)
    rows = {r.kind: r for r in evaluate_policies.measure(engine, "exact", tasks, small, args)}
    engine.close()
    assert [*rows] == ["choice", "regex", "enum", "schema", "all"]
    assert (rows["schema"].prompts, rows["schema"].too_large) == (2, 1)
    assert rows["all"].prompts == rows["all"].valid == 11
    assert rows["choice"].exact + rows["regex"].exact >= 4
    assert rows["choice"].mass > 10 * rows["enum"].mass  # quotes are not what it would say
