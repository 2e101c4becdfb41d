"""JSON values of answers, compared by place, value and type."""

import json
from random import Random

import pytest
from evaluation.values import (
    MISSING,
    f1,
    is_exact,
    is_valid,
    leaves,
    right_leaves,
    same,
    value_of,
)
from training.extraction import extract


def test_an_exact_answer_may_have_a_fence_and_nothing_else():
    item = extract(Random(0), "heldout")
    assert is_exact(item.answer, item.value)
    fenced = f"```json\n{json.dumps(item.value)}\n```"
    assert is_exact(fenced, item.value)
    assert not is_valid(fenced, item.schema)
    assert not is_exact("{}", item.value)
    assert not is_exact(f"Sure! {json.dumps(item.value)}", item.value)


@pytest.mark.parametrize(
    ("value", "other", "equal"),
    [
        (19, 19.0, True),
        (1, True, False),
        (0.0, False, False),
        ([1, {"a": True}], [1.0, {"a": True}], True),
        ([1, {"a": True}], [1.0, {"a": 1}], False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ([1, 2], [2, 1], False),
        ({"a": None}, {}, False),
        ("1", 1, False),
    ],
)
def test_values_are_compared_as_json_values(value, other, equal):
    assert same(value, other) is same(other, value) is equal


@pytest.mark.parametrize("text", ["no JSON", "", "[" * 100_000, "```\n{}\n```"])
def test_a_text_that_is_no_json_has_no_value(text):
    assert value_of(text) is MISSING
    assert not is_exact(text, None)
    assert not is_valid(text, True)


def test_fields_are_right_only_at_their_own_places():
    target = {"a": 19, "b": [True, "x"], "c": {}}
    assert [path for path, _ in leaves(target)] == [("a",), ("b", 0), ("b", 1), ("c",)]
    assert right_leaves(target, target) == (4, 4)
    assert right_leaves({"a": 19.0, "b": [1, "x", "y"], "d": {}}, target) == (2, 4)
    assert right_leaves({"a": {"b": 19}}, target) == right_leaves(MISSING, target) == (0, 4)


def test_the_f1_counts_surplus_and_missing_fields():
    assert f1({"a": 1, "b": 2}, {"a": 1, "b": 2}) == 1
    assert f1({"a": 1, "b": 2, "c": 3}, {"a": 1}) == 2 * 1 / (3 + 1)
    assert f1({"a": 1}, {"a": 1, "b": 2, "c": 3}) == 2 * 1 / (1 + 3)
    assert f1(MISSING, None) == 0
    fenced = value_of('```json\n{"a": 19.0, "b": [1, "x"]}\n```')
    assert f1(fenced, {"a": 19, "b": [True, "x"]}) == 2 / 3
