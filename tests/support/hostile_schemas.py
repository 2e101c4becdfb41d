"""Random JSON schemas whose texts need escapes, and a random writer that prefers to write them.

Strings, keys, enums and patterns hold quotes, backslashes, control characters, and characters
outside the basic plane, which JSON may also write as two escaped surrogates. Nearly every schema
leaves few choices: few keys, few distinct items, short strings.
"""

import random
from collections.abc import Sequence
from typing import Any

from dlm.grammar import Matcher
from dlm.grammar.masks import tokens_in

# Within a schema: a quote, a backslash, control characters, the ends of the planes, emoji.
_CHARACTERS = '"\\/\b\n\t\x00\x1f\x7fa0u é\u07ff\ud7ff\ue000\uffff\U00010000\U0001f600\U0010ffff'
_CLASSES = [
    r"\"", r"\\", r"\/", r"[\"\\]", r"\n", r"[\x00-\x1f]", r"\u0041", r"[\x22-\x24]", r"\u000a",
    r"[\u{1F600}-\u{1F603}]", r"\u{10FFFF}", r"[\u{10000}-\u{10FFFF}]", r"\ud83d\ude00",
    r"[\ud83d\ude00-\ud83d\ude4f]", r"[\u{FFFF}\u{10000}]", r"[\ue000-\uffff]", "[😀😁]", "😀",
    r"[^\u0000-\uffff]", r"[^\u0020-\u{10FFFF}]", r"[^a-zA-Z0-9]", ".", "[ab]", "u", "[0-9a-f]",
    r"[\u{1F3FF}-\u{1F402}]", r"\\u00", r"\\ud83d", r"[\"\u{103FF}-\u{10400}]", r"\t", r"\x7f",
]  # fmt: skip
_TIMES = ["", "", "", "", "?", "*", "+", "{2}", "{1,2}", "{0,3}", "{2,}"]


def hostile_schema(seed: int) -> dict[str, Any]:
    """Return a schema of an array or an object; the same for the same `seed`."""
    dice = random.Random(seed)
    return dice.choice([_array, _object, _object, _any])(dice, 2)


def walk(
    matcher: Matcher, pieces: Sequence[bytes], budget: int, dice: random.Random, check: float = 0.3
) -> list[int]:
    """Return the tokens that a model writes which prefers escapes, the stop among them.

    It takes only tokens that `matcher` allows within `budget`; `pieces` are their bytes. At a share
    `check` of positions, the shortest completion is compared with what is allowed.
    """
    tokens: list[int] = []
    while not matcher.ended:
        left = budget - len(tokens)
        allowed = tokens_in(matcher.allowed(left)).tolist()
        assert allowed, "the mask is empty"
        if dice.random() < check:
            completion = matcher.shortest_completion(left - 1)
            assert completion is not None, "nothing completes the text"
            assert len(completion) < left, "the shortest completion exceeds the budget"
            assert not completion or completion[0] in allowed, "the mask lacks the completion"
        text = b"".join(pieces[token] for token in tokens[-12:])
        wanted = [token for token in allowed if _escapes(text, pieces[token])]
        token = dice.choice(wanted if wanted and dice.random() < 0.8 else allowed)
        assert matcher.accept(token), "a token of the mask is refused"
        tokens.append(token)
    assert len(tokens) <= budget
    return tokens


def _escapes(text: bytes, piece: bytes) -> bool:
    """Whether `piece` begins or continues an escape after `text`."""
    if piece[:1] == b"\\" or piece[:2] in (b'"\\', b'""'):
        return True
    begun = text[-6:].rfind(b"\\u")
    hexadecimal = piece[:1] in b"0123456789abcdefABCDEF" and bool(piece)
    if begun >= 0 and hexadecimal:
        return len(text[-6:]) - begun - 2 < 4
    backslashes = len(text) - len(text.rstrip(b"\\"))
    return backslashes % 2 == 1 and piece[:1] == b"u"


def _any(dice: random.Random, depth: int) -> dict[str, Any]:
    kinds = [_string, _string, _string, _number, _enum]
    if depth > 0:
        kinds += [_array, _object, _array, _object, _either]
    return dice.choice(kinds)(dice, depth)


def _text(dice: random.Random, most: int = 3) -> str:
    return "".join(dice.choices(_CHARACTERS, k=dice.randint(0, most)))


def _pattern(dice: random.Random) -> str:
    def part() -> str:
        parts = (dice.choice(_CLASSES) + dice.choice(_TIMES) for _ in range(dice.randint(1, 2)))
        return "".join(parts)

    body = "|".join(part() for _ in range(dice.choice([1, 1, 1, 2])))
    return f"^(?:{body})$" if dice.random() < 0.85 else body


def _string(dice: random.Random, depth: int = 0) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if dice.random() < 0.75:
        schema["pattern"] = _pattern(dice)
    if dice.random() < 0.3:
        schema["minLength"] = dice.randint(0, 3)
    if dice.random() < 0.4:
        schema["maxLength"] = schema.get("minLength", 1) + dice.randint(0, 3)
    return schema


def _number(dice: random.Random, depth: int) -> dict[str, Any]:
    low = dice.randint(-3, 9)
    return dice.choice(
        [
            {"type": "integer", "minimum": low, "maximum": low + dice.randint(0, 4)},
            {"type": "number", "minimum": low, "maximum": low + 1},
            {"type": "boolean"},
        ]
    )


def _enum(dice: random.Random, depth: int) -> dict[str, Any]:
    values: list[Any] = [_text(dice) for _ in range(dice.randint(1, 4))]
    values += dice.choice([[], [], [1, 1.5], [None, True], [[_text(dice)]], [{_text(dice): 0}]])
    unique = {repr(value): value for value in values}
    if dice.random() < 0.25:
        return {"const": values[0]}
    return {"enum": [*unique.values()]}


def _either(dice: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_any(dice, depth - 1), _any(dice, depth - 1)]}


def _array(dice: random.Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array", "items": _any(dice, depth - 1)}
    if dice.random() < 0.2:
        schema["prefixItems"] = [_any(dice, depth - 1)]
    if dice.random() < 0.6:
        schema["uniqueItems"] = True
    low = dice.choice([0, 0, 1, 2, 3])
    schema["minItems"] = low
    if dice.random() < 0.6:
        schema["maxItems"] = low + dice.randint(0, 3)
    return schema


def _object(dice: random.Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    if dice.random() < 0.5:
        names = [_text(dice) for _ in range(dice.randint(1, 3))]
        schema["properties"] = {name: _any(dice, depth - 1) for name in names}
        schema["required"] = [n for n in dict.fromkeys(names) if dice.random() < 0.5]
    if dice.random() < 0.5:
        patterns = [_pattern(dice) for _ in range(dice.randint(1, 2))]
        schema["patternProperties"] = {each: _any(dice, depth - 1) for each in patterns}
    if dice.random() < 0.5:
        names_: dict[str, Any] = _string(dice)
        schema["propertyNames"] = dice.choice([names_, names_, _enum_of_names(dice)])
    schema["additionalProperties"] = dice.choice([False, True, _any(dice, depth - 1)])
    if dice.random() < 0.6:
        low = schema["minProperties"] = dice.randint(0, 3)
        if dice.random() < 0.5:
            schema["maxProperties"] = low + dice.randint(0, 2)
    return schema


def _enum_of_names(dice: random.Random) -> dict[str, Any]:
    return {"enum": [*{_text(dice) for _ in range(dice.randint(1, 4))}]}
