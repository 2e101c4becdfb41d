"""Values that later items of an array of distinct items need: earlier items leave them."""

import gc
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from maskbench import of_bytes

from dlm.grammar import Compiler, GrammarError, JsonSchema, Matcher
from dlm.grammar.schema.constants import constant
from dlm.grammar.schema.distinct_items import Column, listed_later
from dlm.grammar.schema.normal import NormalForm

COMPILER = Compiler(of_bytes())
_POOL = ["", "a", "b", 0, 1, True]
_FRESH = ["z", "y", "x", "w", 7, 8, 9, 10]  # values that no list has, enough for four items
_ITEMS = st.one_of(
    st.lists(st.sampled_from(_POOL), min_size=1, max_size=3, unique_by=repr).map(
        lambda values: {"enum": values}
    ),
    st.sampled_from([{"type": "string"}, {"type": "integer"}, {"type": "boolean"}]),
)


def array(*items: Any, **more: Any) -> dict[str, Any]:
    number = {"minItems": len(items), "items": False}
    return {"type": "array", "prefixItems": [*items], "uniqueItems": True, **number, **more}


def fits(item: Any, value: Any) -> bool:
    kinds = {"string": str, "integer": int, "boolean": bool}
    if "type" in item:
        return type(value) is kinds[item["type"]]
    return any(type(value) is type(listed) and value == listed for listed in item["enum"])


def may_follow(items: list[Any], used: list[str]) -> bool:
    """Whether distinct values fit `items`, none of which is among the texts `used`."""
    if not items:
        return True
    item, *others = items
    return any(
        may_follow(others, [*used, json.dumps(value)])
        for value in [*_POOL, False, *_FRESH]
        if fits(item, value) and json.dumps(value) not in used
    )


def reads(matcher: Matcher, text: str) -> bool:
    return all(matcher.accept(byte) for byte in text.encode())


@given(st.lists(_ITEMS, min_size=2, max_size=4))
@example([{"type": "string"}, {"enum": [""]}])
@example([{"type": "integer"}, {"enum": [0, 1]}, {"enum": [1]}])
def test_an_item_is_allowed_if_and_only_if_the_others_can_still_be_distinct(items: list[Any]):
    try:
        compiled = COMPILER.compile(JsonSchema(array(*items)))
    except GrammarError:
        assert not may_follow(items, [])
        return
    matcher, written = Matcher(compiled), list[str]()
    assert reads(matcher, "[")
    for place, item in enumerate(items):
        end, chosen = "," if place + 1 < len(items) else "]", None
        for value in [*_POOL, False, *_FRESH]:
            text = json.dumps(value)
            before = matcher.position
            right = fits(item, value) and text not in written
            right = right and may_follow(items[place + 1 :], [*written, text])
            assert reads(matcher, text + end) == right, (items, written, value)
            matcher.rollback(matcher.position - before)
            chosen = text if right else chosen
        assert chosen is not None
        written.append(chosen)
        assert reads(matcher, chosen + end)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        # The items after the first are two of two values.
        (
            {**array({"type": "string"}, minItems=3), "items": {"enum": ["a", "b"]}},
            ['["c", "b", "a"]'],
            ['["a"', '["c", "b", "b"'],
        ),
        # None of the items after the first is required.
        ({**array({"type": "string"}), "items": {"const": "a"}}, ['["a"]', '["b", "a"]'], []),
        # The second item needs the third one's value if there is a third.
        (array({"enum": ["a", "b"]}, {"enum": ["a", "b"]}, {"type": "string"}), [], ['["b", "b"']),
    ],
)
def test_items_that_need_not_be_there_need_no_value(schema: Any, good: list[str], bad: list[str]):
    compiled = COMPILER.compile(JsonSchema(schema))
    assert [reads(Matcher(compiled), text) for text in good + bad] == [True] * len(good) + [
        False
    ] * len(bad)


def test_many_listed_values_take_no_work_for_each_item():
    listed = {"enum": [f"value {i}" for i in range(2000)]}
    COMPILER.compile(JsonSchema(array(*[{"type": "string"}] * 60, listed)))


@pytest.mark.parametrize(
    "keywords",
    [{"unevaluatedProperties": False}, {"unevaluatedItems": False}, {"uniqueItems": True}],
)
def test_keywords_of_later_items_that_have_no_exact_opposite_are_not_negated(keywords: Any):
    compiled = COMPILER.compile(JsonSchema(array({}, {"enum": ["a"], **keywords})))
    texts = ['["b", "a"]', '[{"b": 1}, "a"]', '["a"', '["b", "b"']
    assert [reads(Matcher(compiled), text) for text in texts] == [True, True, False, False]


@pytest.mark.parametrize("item", [{"type": "string"}, {"enum": ["a", "b", "c"]}])
def test_what_wrote_the_rules_waits_for_no_collection_of_garbage(item: Any):
    gc.collect()
    gc.disable()
    try:
        JsonSchema(array(item, {"enum": ["a", "b"]})).rules()
        assert not any(isinstance(kept, NormalForm) for kept in gc.get_objects())
    finally:
        gc.enable()


def test_many_columns_of_few_listed_values_share_the_sets_of_them():
    columns = [Column([constant(i % 3)]) for i in range(3000)]
    later = listed_later(columns)
    assert [len(values) for values in later] == [3] * 2997 + [2, 1, 1]
    assert len({id(values) for values in later}) == 3


def test_more_items_than_values_are_refused():
    with pytest.raises(GrammarError, match="no finite value fits"):
        COMPILER.compile(JsonSchema(array({"type": "string"}, {"const": "a"}, {"const": "a"})))
