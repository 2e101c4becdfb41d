"""Many conditions on one object: enforced exactly, with rules that grow with their number."""

import json
import random
from typing import Any

import pytest
from recogniser import Recogniser

from dlm.grammar import InvalidGrammarError, InvalidValueError, JsonSchema, Tools
from dlm.grammar.rules import Rules
from dlm.grammar.schema import Dialect, write

TEXT, WHOLE, FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}


def closed(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


def pairs(number: int, together: bool = True) -> dict[str, Any]:
    """Keys `a0`, `a1`, ... each of which needs `b0`, `b1`, ..."""
    one, other = ([f"{letter}{i}" for i in range(number)] for letter in "ab")
    names = [name for pair in zip(one, other, strict=True) for name in pair]
    needed = {a: [b] for a, b in zip(one, other, strict=True)}
    return closed(
        dict.fromkeys(names if together else [*one, *other], TEXT), dependentRequired=needed
    )


def flags(number: int, required: bool = True) -> dict[str, Any]:
    """Flags `f0`, `f1`, ... that need `g0`, `g1`, ... if they are true."""
    names = [f"f{i}" for i in range(number)]
    rules = [
        {
            "if": {"properties": {name: {"const": True}}, "required": [name]},
            "then": {"required": [f"g{name[1:]}"]},
        }
        for name in names
    ]
    properties = dict.fromkeys(names, FLAG) | {f"g{i}": TEXT for i in range(number)}
    return closed(properties, allOf=rules, required=names if required else [])


def kinds(number: int) -> dict[str, Any]:
    """A kind that decides which other key is there."""
    rules = [
        {
            "if": {"properties": {"kind": {"const": f"k{i}"}}},
            "then": {"required": [f"g{i}"]},
            "else": {"not": {"required": [f"g{i}"]}},
        }
        for i in range(number)
    ]
    names = {f"g{i}": TEXT for i in range(number)}
    kind = {"enum": [f"k{i}" for i in range(number)]}
    return closed({"kind": kind, **names}, required=["kind"], allOf=rules)


def either(number: int, word: str) -> dict[str, Any]:
    names = {f"{letter}{i}": TEXT for i in range(number) for letter in "ab"}
    options = [{word: [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(number)]
    return closed(names, allOf=options)


LIMITS = closed(
    {f"{letter}{i}": WHOLE for i in range(6) for letter in "ab"},
    required=[f"{letter}{i}" for i in range(6) for letter in "ab"],
    allOf=[
        {
            "if": {"properties": {f"a{i}": {"minimum": 5}}},
            "then": {"properties": {f"b{i}": {"minimum": 7}}},
        }
        for i in range(6)
    ],
)
NAMED_BY_A_BRANCH = closed(
    {f"a{i}": FLAG for i in range(6)},
    allOf=[
        {
            "if": {"properties": {f"a{i}": {"const": True}}, "required": [f"a{i}"]},
            "then": {"properties": {f"x{i}": WHOLE}, "required": [f"x{i}"]},
        }
        for i in range(6)
    ],
)
SCHEMAS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "pairs": (pairs(6), ["", 1]),
    "pairs far apart": (pairs(6, together=False), [""]),
    "a chain": (
        closed({f"a{i}": TEXT for i in range(7)},
               dependentRequired={f"a{i}": [f"a{i + 1}"] for i in range(6)}),
        ["x"],
    ),
    "flags": (flags(6), [True, False]),
    "optional flags": (flags(5, required=False), [True, False]),
    "kinds": (kinds(6), ["k0", "k3"]),
    "one at least": (either(6, "anyOf"), [""]),
    "exactly one": (either(6, "oneOf"), [""]),
    "bounds on each other": (LIMITS, [3, 6, 8]),
    "schemas": (
        closed({f"{letter}{i}": WHOLE for i in range(6) for letter in "ab"},
               dependentSchemas={f"a{i}": {"properties": {f"b{i}": {"minimum": 5}}}
                                 for i in range(6)}),
        [3, 8],
    ),
    "names of a branch": (NAMED_BY_A_BRANCH, [True, False, 3]),
}  # fmt: skip


RARE: dict[str, Any] = {  # values of schemas that random ones hardly ever fit
    "flags": {"f0": True, "g0": "", **dict.fromkeys(("f1", "f2", "f3", "f4", "f5"), False)},
    "names of a branch": {"a0": True, "x0": 3, "a1": False},
    "kinds": {"kind": "k3", "g3": ""},
    "exactly one": {"a0": "", "b1": "", "a2": "", "a3": "", "b4": "", "b5": ""},
}


def fits(spec: JsonSchema, text: str) -> bool:
    try:
        spec.value(text)
    except InvalidValueError:
        return False
    return True


def orders(schema: dict[str, Any]) -> list[list[str]]:
    """Return the schema's order of keys, and those with keys of one number together."""
    names = [*schema["properties"], *(f"x{i}" for i in range(6) if "x0" in json.dumps(schema))]
    return [names, sorted(names, key=lambda name: (name[1:] != "ind", name[1:], name[0]))]


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("name", SCHEMAS)
def test_conditions_are_enforced_exactly(name: str, opened: bool):
    schema, values = SCHEMAS[name]
    options = {"additional_properties": "schema"} if opened else {}
    spec = JsonSchema(schema, **options)
    assert not spec.checked
    accepts = Recogniser(spec.rules(None)).accepts
    choose, seen = random.Random(0), {True: 0, False: 0}
    for turn in range(160):
        presence = choose.choice((0.3, 0.6, 1.0, 1.0))
        names = orders(schema)[0]
        value = {
            n: choose.choice([*values, *[""] * (turn % 5 == 0)])
            for n in names
            if choose.random() < presence
        }
        texts = [json.dumps({n: value[n] for n in order if n in value}) for order in orders(schema)]
        right = fits(spec, texts[0])
        if right and not opened and any(n[0] == "x" for n in value):
            right = all(value.get(f"a{n[1:]}") is True for n in value if n[0] == "x")
        seen[right] += 1
        assert any(map(accepts, texts)) == right, (turn, texts)
    assert seen[False]
    assert seen[True] or name in RARE
    if name in RARE:
        text = json.dumps(RARE[name])
        assert fits(spec, text)
        assert accepts(text)


@pytest.mark.parametrize(
    "make",
    [
        pairs,
        flags,
        lambda n: pairs(n, False),
        lambda n: flags(n, False),
        lambda n: values_before_flags(n, "f"),
    ],
)
def test_rules_grow_with_the_number_of_conditions(make: Any):
    sizes = []
    for number in (10, 20, 40):
        rules = Rules()
        write(make(number), dialect=Dialect(), rules=rules, most_work=30_000)
        sizes.append(len(rules.nodes))
    assert sizes[2] < 2.2 * sizes[1] < 4.8 * sizes[0]


def test_a_condition_within_a_call_is_enforced():
    tool = {"type": "function", "function": {"name": "f", "parameters": flags(12)}}
    assert not Tools([tool]).checked


def test_conditions_about_required_keys_far_apart_are_refused_by_name():
    names = [f"{letter}{i}" for letter in "ab" for i in range(14)]
    schema = closed(
        dict.fromkeys(names, WHOLE),
        required=names,
        dependentSchemas={
            f"a{i}": {"anyOf": [{"properties": {f"a{i}": {"minimum": 5}}},
                                {"properties": {f"b{i}": {"minimum": 7}}}]} for i in range(14)
        },
    )  # fmt: skip
    with pytest.raises(
        InvalidGrammarError, match="dependentSchemas take over 2,000 rules"
    ) as error:
        JsonSchema({"items": schema}).rules(None)
    assert error.value.where == "/items"
    assert JsonSchema({"items": schema}, unenforced="check").rules(None).inexact


def values_before_flags(number: int, required: str) -> dict[str, Any]:
    """Values `v0`, `v1`, ... and after all of them flags, each of which limits a value."""
    properties = {f"v{i}": WHOLE for i in range(number)} | {f"f{i}": FLAG for i in range(number)}
    rules = [
        {
            "if": {"properties": {f"f{i}": {"const": True}}, "required": [f"f{i}"]},
            "then": {"required": [f"v{i}"], "properties": {f"v{i}": {"minimum": 5}}},
        }
        for i in range(number)
    ]
    names = [name for name in properties if name[0] in required]
    return closed(properties, required=names, allOf=rules)


@pytest.mark.parametrize(
    ("required", "order", "pair"),
    [("f", "required", "fv"), ("v", "required", "vf"), ("vf", "any", "vf"), ("", "required", "vf")],
)
def test_conditions_about_keys_far_apart_are_enforced_where_the_order_is_free(
    required: str, order: Any, pair: str
):
    spec = JsonSchema(values_before_flags(14, required), property_order=order)
    assert not spec.checked
    accepts = Recogniser(spec.rules(None)).accepts
    choose, seen = random.Random(0), {True: 0, False: 0}
    for _ in range(16):
        value: dict[str, Any] = {}
        for i in range(14):
            flag = choose.random() < 0.5
            value[f"f{i}"] = flag
            if "v" in required or flag or choose.random() < 0.5:
                value[f"v{i}"] = choose.choice((5, 7)) if flag else choose.choice((3, 5))
        if choose.random() < 0.5:
            i = choose.randrange(14)
            value |= {f"f{i}": True, f"v{i}": 4}
        names = [f"{letter}{i}" for i in range(14) for letter in pair]
        text = json.dumps({name: value[name] for name in names if name in value})
        seen[fits(spec, text)] += 1
        assert accepts(text) == fits(spec, text), text
    assert all(seen.values())


def test_where_the_order_is_not_free_the_error_says_what_would_be():
    with pytest.raises(
        InvalidGrammarError, match=r'neighbours in `properties`.*property_order="any"'
    ):
        JsonSchema(values_before_flags(14, "vf")).rules(None)
