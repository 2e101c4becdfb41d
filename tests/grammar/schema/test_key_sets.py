"""Keys of tools' arguments that the schema does not name: enough of them are different."""

from itertools import product
from typing import Any

import pytest
from random_grammars import vocabulary_of
from spoken import TOKENS, objects, recogniser, tools

from dlm.grammar import BudgetError, Compiler, InvalidGrammarError, Matcher
from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.patterns import automaton_of
from dlm.grammar.schema.key_sets import key_sets

ANY = {"additionalProperties": {"type": "integer"}}
UNDER_A = {"a": ANY | {"type": "object", "minProperties": 2}}


def arguments(*keys: str) -> str:
    inner = ",".join(f"{key}:1" for key in keys)
    return f"{TOKENS[1]}call:f{{{inner}}}{TOKENS[2]}"


def accepted(schema: dict[str, Any], letters: str, most: int) -> set[str]:
    reader = recogniser(tools(schema))
    texts = ("".join(way) for n in range(most + 1) for way in product(letters, repeat=n))
    return {text for text in texts if reader.accepts(arguments(*text))}


@pytest.mark.parametrize("low", [1, 2, 3])
@pytest.mark.parametrize("high", [None, 3])
@pytest.mark.parametrize("named", ["", "a", "ab"])
@pytest.mark.parametrize("required", ["", "a"])
@pytest.mark.parametrize("order", ["required", "schema", "any"])
def test_arguments_have_as_many_different_keys_as_the_schema_asks_for(
    low, high, named, required, order
):
    if required not in named:
        return
    bounds = {"minProperties": low} | ({} if high is None else {"maxProperties": high})
    schema = objects([*required], **{n: {"type": "integer"} for n in named}) | ANY | bounds
    reader = recogniser(tools(schema, property_order=order))
    texts = ["".join(way) for n in range(5) for way in product("abc", repeat=n)]
    taken = {text for text in texts if reader.accepts(arguments(*text))}
    assert all(len({*text}) >= low for text in taken)
    assert all(high is None or len(text) <= high for text in taken)
    different = {text for text in texts if len({*text}) == len(text)}
    fitting = {
        text
        for text in different
        if low <= len(text) <= (high or 4)
        and {*required} <= {*text}
        and (order != "schema" or [*text] == in_schema_order(text, named))
    }
    assert fitting <= taken


def in_schema_order(keys: str, named: str) -> list[str]:
    return [key for key in named if key in keys] + [key for key in keys if key not in named]


def test_keys_that_are_not_needed_may_repeat_and_do_not_count():
    taken = accepted(objects() | ANY | {"minProperties": 2}, "ab", 3)
    assert taken == {"ab", "ba", "aab", "aba", "abb", "baa", "bab", "bba"}


def test_keys_that_begin_alike_count_once_and_others_for_themselves():
    schema = objects() | ANY | {"minProperties": 2}
    reader = recogniser(tools(schema))
    letters = "abcdefghijklmnopqrstuvwxyz"
    pairs = [(f"{x}{y}", f"{x}{z}") for x in letters for y, z in (("a", "b"), ("y", "z"))]
    assert not any(reader.accepts(arguments(one, one)) for one, _ in pairs)
    for one, other in pairs:  # of one set or of two: with a key of another set they are enough
        assert any(reader.accepts(arguments(one, other, third)) for third in "01")


MIXED = {"additionalProperties": {"type": ["integer", "boolean"]}}
NEEDED: list[tuple[dict[str, Any], Any]] = [
    ({"not": {"patternProperties": {"^x": {"type": "integer"}}}}, lambda k, v: k[0] == "x" and v),
    ({"not": {"additionalProperties": {"type": "integer"}}}, lambda k, v: v),
]


@pytest.mark.parametrize("named", [{}, {"n": {"type": "integer"}}])
@pytest.mark.parametrize(("needed", "fits"), NEEDED)
@pytest.mark.parametrize("most", [None, 2])
def test_no_repetition_replaces_the_value_that_a_pattern_needs(needed, fits, named, most):
    """A boolean is needed; the last value of a key is the argument."""
    bound = {} if most is None else {"maxProperties": most}
    reader = recogniser(tools(objects([*named], **named) | MIXED | needed | bound))
    members = [(key, value) for key in ("x", "xy", "z") for value in (1, True)]
    texts = [way for n in range(4) for way in product(members, repeat=n)]
    for text in texts:
        written = [*text, *((name, 1) for name in named)]
        inner = ",".join(f"{key}:{'true' if value is True else value}" for key, value in written)
        accepted = reader.accepts(f"{TOKENS[1]}call:f{{{inner}}}{TOKENS[2]}")
        arguments = dict(written)
        valid = any(fits(key, value is True) for key, value in arguments.items())
        valid &= most is None or len(arguments) <= most
        if accepted:
            assert valid, inner
        different = len(arguments) == len(written)
        if different and valid and not named:
            last = fits(written[-1][0], written[-1][1] is True)
            every = all(v is True for k, v in written if needed is NEEDED[1][0] or k[0] == "x")
            assert accepted or not (last or every), inner


def test_a_needed_property_beside_a_number_of_them_is_refused_within_calls():
    schema = objects() | MIXED | NEEDED[0][0] | {"minProperties": 2}
    assert tools(schema).checked
    with pytest.raises(InvalidGrammarError, match="too many rules to count"):
        tools(schema, strict=True).rules(None)


def test_objects_within_arguments_have_enough_different_keys_too():
    reader = recogniser(tools(objects(["a"], **UNDER_A)))

    def accepts(inner: str) -> bool:
        return reader.accepts(f"{TOKENS[1]}call:f{{a:{{{inner}}}}}{TOKENS[2]}")

    assert accepts("x:1,y:2")
    assert not accepts("x:1,x:2")
    assert accepts("x:1,x:2,y:3")


def test_a_strict_tool_with_too_many_different_keys_is_refused_and_another_is_checked():
    schema = objects() | ANY | {"minProperties": 40}
    assert tools(schema).checked
    with pytest.raises(InvalidGrammarError, match="too many rules to count"):
        tools(schema, strict=True).rules(None)


@pytest.mark.parametrize(
    "pattern",
    ["[a-z]+", "x-[a-z]+", "a+", "[ab]{3}", "(ab|cd|é)?", "[一-龥]{2}", "[!-X]", "q", ".*"],
)
@pytest.mark.parametrize("count", [1, 2, 5, 24, 60])
def test_key_sets_are_disjoint_and_make_up_the_keys(pattern, count):
    keys = automaton_of(pattern, True)
    sets = key_sets(keys, count)
    words = keys.words_up_to(count)
    assert len(sets) == (count if words is None else min(count, len(words)))
    union = Automaton.NONE
    for part in sets:
        assert not part.is_empty
        assert union.intersection(part).is_empty
        union = union.union(part)
    assert union == keys


def test_many_keys_beyond_those_needed_take_few_readings_and_short_budgets_are_kept():
    vocabulary = vocabulary_of([bytes([byte]) for byte in range(256)])
    compiled = Compiler(vocabulary).compile(tools(objects() | ANY | {"minProperties": 3}))
    opened, closed = vocabulary.call.open, vocabulary.call.close
    keys = [f"{letter}{number}" for number in range(3) for letter in "abcdefghijklmnopqrstuvw"]
    members = ",".join(f"{key}:1" for key in keys)
    matcher = Matcher(compiled)
    tokens = [opened, *vocabulary.encode(f"call:f{{{members}}}"), closed, *vocabulary.stops]
    assert matcher.accept_all(tokens) == len(tokens)
    assert len(compiled.parser.states) < 6 * len(tokens)
    matcher = Matcher(compiled)
    assert matcher.accept_all([opened, *vocabulary.encode("call:f{a:1,a:2,")]) == 16
    left = len("b:0,c:0}") + 2
    rest = matcher.shortest_completion()
    assert rest is not None
    assert len(rest) + 1 == left
    assert matcher.accept_all(vocabulary.encode("a:3")) == 3
    with pytest.raises(BudgetError, match=f"takes {left + 1} tokens"):
        matcher.check_budget(left)
