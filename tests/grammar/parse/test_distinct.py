"""Arrays of unique items, compared with a check of the whole text."""

import json
import random
from typing import Any

import pytest
from exhaustive import by_default, examples
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from maskbench import of_bytes
from toys import toy_vocabulary

from dlm.grammar import Compiler, JsonSchema, Matcher
from dlm.grammar.masks import tokens_in
from dlm.grammar.parse import Keys
from dlm.grammar.vocabulary import QuotedTokens

BYTES = of_bytes()
BYTE_COMPILER = Compiler(BYTES)
_POINT = {"type": "object", "properties": {"x": {"enum": [1, 2]}, "y": {"enum": [1, 2]}}}


def unique(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "uniqueItems": True, **more}


def colours(count: int, **more: Any) -> dict[str, Any]:
    return unique({"enum": [f"colour{i}" for i in range(count)]}, **more)


SCHEMAS = {
    "strings": unique({"type": "string"}, minItems=2),
    "short": unique({"type": "string", "maxLength": 1}, minItems=3, maxItems=6),
    "quotes": unique({"type": "string", "pattern": r'^["\\\n😀]{1,2}$'}, minItems=4),
    "integers": unique({"type": "integer"}, minItems=3),
    "digits": unique({"type": "integer", "minimum": 0, "maximum": 30}, minItems=6),
    "all digits": unique({"type": "integer", "minimum": 0, "maximum": 5}, minItems=6),
    "numbers": unique({"type": "number", "minimum": 0, "maximum": 2}, minItems=3),
    "mixed": unique({"enum": [1, True, 1.5, "1", None, 0, False, [], {}]}, minItems=9),
    "closed": unique({**_POINT, "additionalProperties": False}, minItems=5),
    "required": unique({**_POINT, "required": ["x", "y"]}, minItems=4),
    "open": unique({"type": "object", "additionalProperties": {"const": 1}}, minItems=3),
    "pairs": unique(
        {"type": "object", "additionalProperties": {"const": 1}, "minProperties": 2}
        | {"maxProperties": 2, "propertyNames": {"pattern": "^[abc]$"}},
        minItems=3,
    ),
    "nested": unique(unique({"enum": [1, 2]}, maxItems=2), minItems=5),
    "of numbers": unique({"type": "array", "items": {"enum": [1, 2]}, "minItems": 2}, minItems=4),
    "9": colours(9, minItems=9),
    "12": colours(12, minItems=12),
    "20": colours(20, minItems=20),
    "some of 20": colours(20, minItems=3),
    "prefix": unique({"enum": [1, 2, 3]}, prefixItems=[{"type": "integer"}], minItems=3),
    "within": {"type": "object", "properties": {"a": colours(9), "b": unique({"type": "string"})}}
    | {"required": ["a", "b"], "additionalProperties": False},
}


LONG = ("open", "12", "20")  # they take seconds, and are similar to others
BY_DEFAULT = [name for name in SCHEMAS if name not in LONG]


@pytest.fixture(scope="module", params=by_default([*BY_DEFAULT, *LONG], len(BY_DEFAULT)))
def case(request, compiler):
    schema = SCHEMAS[request.param]
    spec = JsonSchema(schema, max_whitespace=1)
    return schema, spec, compiler.compile(spec)


def test_the_items_of_a_random_text_differ(case):
    schema, spec, _ = case
    grammar, vocabulary = BYTE_COMPILER.compile(spec), BYTES
    dice, matcher, tokens = random.Random(0), Matcher(grammar), []
    shortest = matcher.shortest_completion()
    assert shortest is not None
    budget = len(shortest) + 1 + dice.randint(0, 40)
    while not matcher.ended:
        tight = len(tokens) % 5 == 0 or not matcher.closes_within(budget - len(tokens) - 40)
        allowed = matcher.allowed(budget - len(tokens) if tight else None)
        token = dice.choice(tokens_in(allowed).tolist())
        assert matcher.accept(token)
        tokens.append(token)
    assert len(tokens) <= budget
    text = vocabulary.text(tokens)
    assert Draft202012Validator(schema).is_valid(json.loads(text)), text
    spec.value(text)


def test_a_mask_allows_the_tokens_that_are_accepted_and_each_can_be_completed(case, vocabulary):
    _, _, grammar = case
    dice, matcher = random.Random(1), Matcher(grammar)
    shortest = matcher.shortest_completion()
    assert shortest is not None
    budget, checked = len(shortest) + 9, 0
    while not matcher.ended and checked < 3:
        if matcher.position % 4 == 3:
            checked += 1
            mask = set(tokens_in(matcher.allowed()).tolist())
            some = dice.sample(sorted(mask), min(40, len(mask)))
            for token in [*some, *dice.sample(range(len(vocabulary)), 200)]:
                taken = matcher.accept(token)
                assert taken == (token in mask), vocabulary.pieces[token]
                if taken:
                    assert matcher.ended or matcher.shortest_completion() is not None
                    matcher.rollback(1)
        left = budget - matcher.position
        assert matcher.accept(dice.choice(tokens_in(matcher.allowed(left)).tolist()))


def instances(schema: dict[str, Any], dice: random.Random) -> list[Any]:
    """Return arrays that `schema` may accept, drawn from a few values."""
    keys = ["x", "y", "a", "b", "c"]
    values: list[Any] = [1, 2, 0, 1.5, True, False, None, "1", "", 'q"', "\\", "😀", [], {}, 7, 30]
    values += [[1], [2], [1, 2], [2, 1], [1, 1], "a", "b", "é"]
    values += [{dice.choice(keys): dice.choice([1, 2]) for _ in range(2)} for _ in range(6)]
    values += schema.get("items", {}).get("enum", [])
    values += [*range(6), "\n", 'a"', '""', "\\\\", "\\n", "\n\\"]
    values += [{"a": 1, "b": 1}, {"a": 1, "c": 1}, {"b": 1, "c": 1}]
    for x in (1, 2):
        values += [{"x": x}, {"y": x}, {"x": x, "y": 1}, {"x": x, "y": 2}, [x, 1], [x, 2], {"a": 1}]
    least = schema.get("minItems", 0)
    fits = Draft202012Validator(schema.get("items", True))
    fitting = [value for value in values if fits.is_valid(value)]
    apart = [*{json.dumps(value): value for value in fitting}.values()]
    drawn = []
    for i in range(30):
        among, count = (fitting, apart)[i % 2], dice.randint(least, least + 2)
        drawn.append(dice.sample(among, min(count, len(among))))
    return drawn


def test_exactly_the_valid_arrays_are_accepted(case, vocabulary):
    schema, _, grammar = case
    dice, valid = random.Random(2), 0
    for value in instances(schema, dice):
        is_valid = Draft202012Validator(schema).is_valid(value)
        for ascii_ in (False, True):
            text = json.dumps(value, ensure_ascii=ascii_)
            tokens = [*vocabulary.encode(text), vocabulary.stops[0]]
            accepted = Matcher(grammar).accept_all(tokens) == len(tokens)
            if _in_order(value):
                assert accepted == is_valid, text
            else:
                assert is_valid or not accepted, text
        valid += is_valid
    assert valid or schema["type"] == "object"


def _in_order(value: Any) -> bool:
    """Whether the keys of all objects are sorted, as in the closed schemas."""
    if isinstance(value, dict):
        return [*value] == sorted(value)
    return not isinstance(value, list) or all(map(_in_order, value))


EQUAL = [
    ({"type": "number"}, "1", "1.0"),
    ({"type": "number"}, "1", "1e0"),
    ({"type": "number"}, "100", "1E+2"),
    ({"type": "number"}, "0", "-0.0"),
    ({"type": "number"}, "0.5", "50e-2"),
    ({"type": "integer"}, "0", "-0"),
    ({"type": "string"}, '"a"', r'"\u0061"'),
    ({"type": "string"}, '"/"', r'"\/"'),
    ({"type": "string"}, '"😀"', r'"\ud83d\uDE00"'),
    ({"type": "object"}, '{"a":1,"b":2}', '{"b":2,"a":1}'),
    ({"type": "object"}, '{"a":1,"b":2}', r'{"\u0062": 2.0, "a": 1e0}'),
    ({"type": "object"}, '{"a":{"b":[1],"c":0}}', '{"a":{"c":0.0,"b":[1.0]}}'),
    ({"type": "array"}, "[1,2]", "[ 1.0, 2]"),
    ({"type": "array"}, '["a"]', r'["\u0061"]'),
    (True, "[1]", "[1.0]"),
]
DIFFERENT = [
    (True, "1", "true"),
    (True, "0", "false"),
    (True, '"1"', "1"),
    (True, "null", '"null"'),
    (True, "[]", "{}"),
    (True, '["a"]', '{"a":0}'),
    ({"type": "number"}, "1", "1.00000000000000000001"),
    ({"type": "number"}, "1e30", "1e31"),
    ({"type": "string"}, '"\\ud83d\\ude00"', '"\\ud83d\\ude01"'),
    ({"type": "object"}, '{"a":1,"b":2}', '{"a":2,"b":1}'),
    ({"type": "object"}, '{"a":1}', '{"a":true}'),
    ({"type": "array"}, "[1,2]", "[2,1]"),
    ({"type": "array"}, "[1]", "[1,1]"),
]


@pytest.mark.parametrize(
    ("item", "one", "other", "differ"),
    [(*items, False) for items in EQUAL] + [(*items, True) for items in DIFFERENT],
)
@pytest.mark.parametrize("between", [",", ", "])
def test_items_are_compared_by_their_values(
    compiler, vocabulary, item, one, other, differ, between
):
    grammar = compiler.compile(JsonSchema(unique(item), additional_properties="schema"))
    for first, second in ((one, other), (other, one)):
        tokens = vocabulary.encode(f"[{first}{between}{second}]")
        assert (Matcher(grammar).accept_all(tokens) == len(tokens)) == differ


def test_an_item_that_could_only_be_equal_in_another_order_is_refused_early():
    """After `"a":1,"b":1` an object of at most two properties could only end."""
    item = {"type": "object", "minProperties": 2, "maxProperties": 2}
    item |= {"additionalProperties": {"const": 1}}
    spec = JsonSchema(unique(item, minItems=2), max_whitespace=1)
    matcher = Matcher(BYTE_COMPILER.compile(spec))
    begun = b'[{"b":1,"a":1},{"a":1,"b'
    assert matcher.accept_all(begun) == len(begun)
    assert not matcher.accept(ord('"'))
    assert matcher.accept(ord("b"))


def test_a_schema_of_too_few_distinct_items_has_no_completion(compiler):
    for items in (
        {"type": "integer", "minimum": 6, "maximum": 6},
        {"type": "array", "maxItems": 0},
    ):
        spec = JsonSchema(unique(items, prefixItems=[{"type": "string"}], minItems=3))
        assert Matcher(compiler.compile(spec)).shortest_completion() is None


@pytest.mark.parametrize("text", [b"[7,7", b"[7,\n  7", b"[16, 6 ,-0, 6"])
def test_white_space_after_a_repeated_number_is_not_allowed(text: bytes):
    """White space ends the number, which another digit could still tell from the first."""
    matcher = Matcher(BYTE_COMPILER.compile(JsonSchema(SCHEMAS["integers"])))
    assert matcher.accept_all(list(text)) == len(text)
    allowed = tokens_in(matcher.allowed()).tolist()
    assert not {*b" \t\r\n,]"} & {*allowed}
    for token in allowed:
        assert matcher.accept(token)
        matcher.rollback(1)


VALUES = st.recursive(
    st.text('xb"\\/\n\u00e9\U0001f600', max_size=3)
    | st.sampled_from([1, 1.0, 10, -0.5, True, None]),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=2)
        | st.dictionaries(st.text("xb\n", max_size=2), inner, min_size=1, max_size=2)
    ),
    max_leaves=4,
)
SHORT = st.text('xb/\n"\U0001f600', max_size=2)
FEW = {"enum": ["x", "b", "xb", ["x"], ["x", "b"], {"x": "b"}, 1, 10, True]}
PAIR = {"type": "object", "minProperties": 2, "maxProperties": 2}
PAIR |= {"propertyNames": {"pattern": "^[xb/]$"}, "additionalProperties": {"enum": ["x", True]}}
LISTS = {"type": "array", "items": {"type": "string", "maxLength": 1}, "minItems": 1, "maxItems": 2}
MASKED = {  # items, and values of them
    "free": (True, VALUES),
    "short": ({"type": "string", "maxLength": 2}, SHORT),
    "few": (FEW, st.sampled_from(FEW["enum"])),
    "numbers": ({"type": "number", "minimum": 0, "maximum": 2}, st.sampled_from([1, 1.0, 0.5, 2])),
    "pairs": (PAIR, st.permutations("xb/").map(lambda keys: dict.fromkeys(keys[:2], "x"))),
    "lists": (LISTS, st.lists(st.sampled_from("xb\n"), min_size=1, max_size=2)),
    "of unique": (
        unique(LISTS["items"]),
        st.lists(st.sampled_from("xb\n/"), unique=True, max_size=3),
    ),
}
SPELLED = [
    '"x',
    ' "x',
    'b"',
    'xb"',
    'b","',
    '"]',
    '"],["',
    ',"x',
    ', "',
    "\\n",
    "\\u00",
    "u0078",
    "78",
]
SPELLED += [
    "8b",
    "u000a",
    "0A",
    '8"',
    "\\ud83d",
    "\\ude00",
    'ude00"',
    "/b",
    "\\/",
    '{"x',
    ' {"b',
    '["x',
]
SPELLED += [
    ":t",
    ": t",
    " true",
    "tr",
    ".0",
    "1.",
    "e0",
    "0]",
    ",1",
    '":"',
    '"x":"x"',
    '"}',
    "},",
    "  ",
]
SPELLING = toy_vocabulary([*(bytes([byte]) for byte in range(256)), *map(str.encode, SPELLED)])
SPELLING_COMPILER = Compiler(SPELLING)


def respelled(value: Any, dice: random.Random) -> str:
    """Return one of the spellings of a JSON value, with its keys in any order."""
    if isinstance(value, dict):
        members = dice.sample([*value.items()], len(value))
        pairs = (f"{respelled(key, dice)}:{respelled(item, dice)}" for key, item in members)
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{','.join(respelled(item, dice) for item in value)}]"
    if not isinstance(value, str):
        return json.dumps(value)
    return f'"{"".join(escaped(c) if dice.random() < 0.3 else plain(c) for c in value)}"'


def plain(char: str) -> str:
    return json.dumps(char, ensure_ascii=False)[1:-1]


def escaped(char: str) -> str:
    """Return the escapes of the UTF-16 units of a character."""
    return "".join(f"\\u{unit}" for unit in char.encode("utf-16-be").hex(" ", 2).split())


def assert_masked_as_read(matcher: Matcher, text: bytes) -> None:
    """Compare the mask with each token, after the tokens of `text` that can be read."""
    matcher.accept_all([SPELLING.pieces.index(bytes([byte]), 2) for byte in text])
    allowed = {*tokens_in(matcher.allowed()).tolist()}
    for token, piece in enumerate(SPELLING.pieces):
        accepted = matcher.accept(token)
        assert accepted == (token in allowed), (text, piece)
        if accepted:
            matcher.rollback(1)


@pytest.mark.parametrize("name", MASKED)
@examples(60)
@given(data=st.data(), dice=st.randoms(use_true_random=False))
def test_a_mask_has_the_tokens_that_can_be_read(name, data, dice):
    """Each token is read alone, where an item repeats an earlier one in another spelling."""
    items, values = MASKED[name]
    spec = JsonSchema(unique(items), additional_properties="schema")
    earlier = data.draw(st.lists(values, min_size=1, max_size=2))
    last = respelled(data.draw(st.sampled_from(earlier) | values), dice)
    text = f"[{','.join(respelled(value, dice) for value in earlier)},{last}"
    cut = data.draw(st.integers(0, len(last)))
    assert_masked_as_read(
        Matcher(SPELLING_COMPILER.compile(spec)), text[: len(text) - cut].encode()
    )


STRING = {"type": "string", "maxLength": 2}
CHARACTER = {"type": "string", "maxLength": 1}
FLAG = {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}
NAMED = {"type": "object", "additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (unique(STRING), r'["xb","\u0078'),
        (unique(STRING), '["/b","\\'),
        (unique(CHARACTER), '["x",'),
        (unique(CHARACTER), r'["\n","\u000'),
        (unique(CHARACTER), '["\\n","\\'),
        (unique(CHARACTER), r'["😀","\ud83d'),
        (unique(CHARACTER), r'["😀","\ud83d\ude0'),
        (unique({"type": ["boolean", "string"], "maxLength": 3}), "[true,"),
        (unique(FLAG | {"additionalProperties": False}), '[{"x":true},{"x"'),
        (unique(PAIR), '[{"x":"x","b":"x"},{"/":"x","b":"x"},'),
        (unique(LISTS | {"items": STRING, "maxItems": 1}), r'[["xb"],["\u0078'),
        (unique(LISTS | {"items": STRING, "maxItems": 1}), r'[["xb"],["\u007'),
        (NAMED | {"propertyNames": STRING}, r'{"xb":1,"\u0078'),
        (NAMED | {"propertyNames": CHARACTER}, r'{"x":1,"\u007'),
        (NAMED | {"propertyNames": CHARACTER}, '{"x":1,"\\'),
    ],
)
def test_no_token_that_leads_only_to_a_repetition_is_in_a_mask(schema, text):
    spec = JsonSchema(schema, additional_properties="schema")
    matcher = Matcher(SPELLING_COMPILER.compile(spec))
    assert_masked_as_read(matcher, text.encode())
    assert matcher.position == len(text.encode())


def test_only_a_string_of_an_earlier_item_can_end_a_repeated_item():
    keys = Keys().after(b'[{"n":"some"},{"n":"so', lambda place: place == 0)
    assert keys is not None
    pieces = [b'me"', b'me"}', b'x"', b'"]', b"\\n", b"m\\u", b"\\u006De", b"x\\n", b'",']
    tokens = QuotedTokens(pieces)
    spelling = set().union(*map(tokens.spelling, keys.taken_continuations))
    assert {pieces[token] for token in spelling} == {b'me"', b'me"}', b"m\\u", b"\\u006De"}
    assert tokens_in(keys.item_suspects(tokens)).tolist() == [pieces.index(b'",')]


@pytest.mark.parametrize("begun", ["so", "\\u0073o", "\\u0073\\u006F"])
def test_the_string_of_an_earlier_item_is_known_in_each_spelling(begun: str):
    keys = Keys().after(f'["some","{begun}'.encode(), lambda place: place == 0)
    assert keys is not None
    assert keys.taken_continuations == [b'me"']
    assert not keys.escape
    other = keys.after(b"x")
    assert other is not None
    assert not other.taken_continuations
    assert not other.at_risk


ROW = json.dumps({"n": "a, " * 300, "row": [7] * 300})[:-2]


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (
            '[{"n": "item"}, {"n": "it',
            json.dumps([{"n": f"i{i}"} for i in range(400)])[:-1] + ', {"n": "i',
        ),
        ('[{"n": 1}, {"n": "a, b, c, d, e, f', f"[{ROW}]}}, {ROW}"),
    ],
    ids=["items", "values"],
)
def test_the_work_of_a_mask_counts_the_items_and_values_that_are_compared(short, long):
    spent = []
    spec = JsonSchema(unique({"type": "object"}), additional_properties="schema")
    for text in (short, long):
        pieces = [*(bytes([byte]) for byte in range(256)), text.encode()]
        grammar = Compiler(toy_vocabulary(pieces)).compile(spec)
        matcher = Matcher(grammar)
        assert matcher.accept(len(grammar.vocabulary) - 1)
        before = grammar.meter.spent
        matcher.allowed()
        spent.append(grammar.meter.spent - before)
    assert spent[1] > 300 > spent[0], spent


def test_commas_within_strings_of_an_item_take_no_work():
    texts = ['[{"n":1},{"m":"a', '[{"n":1},{"m":"a, b, \\", c, d']
    both = [Keys().after(text.encode(), lambda place: place == 0) for text in texts]
    assert [keys and keys.compared for keys in both] == [1, 1]
