"""Random grammars over random vocabularies, aimed at objects whose keys are free.

A case is drawn from a `random.Random`, so a seed repeats it, and hypothesis can shrink it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any, Literal

from dlm.grammar import Grammar, JsonSchema, Spec, Tools, Vocabulary
from dlm.grammar.vocabulary import GemmaMarkers

Form = Literal["json", "gemma", "ebnf", "lark"]
FORMS: tuple[Form, ...] = ("json", "json", "json", "gemma", "ebnf", "lark")
_KEYS = ("a", "b", "ab", "x", "foo", "id", "é", 'q"', "", "__proto__", "a b", "日")
_PARTS = (
    *('"', '":', '": ', '",', '", ', '","', '":"', '":{', "{", "}", "[", "]", "},", "],", ", "),
    *(",", ": ", "\n", "\n  ", "\n    ", ",\n  ", " ", "  ", "\\", "\\u", "\\n", "00", "0.", "1e"),
    *('{"', '"}', "}}", "]]", '["', '"]', "[[", "{}", "[]", '""', "true", "false", "null", "-1"),
    *('"a":', '"b":', '"a', 'a":', 'b":', '"x"', "é", "😀", "\\u00e9", '":1', '":0,"', "12", "aa"),
)


@dataclass(frozen=True)
class WalkCase:
    """A grammar over a vocabulary."""

    form: Form
    spec: Spec
    pieces: tuple[bytes, ...]  # all single bytes among them

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return vocabulary_of(self.pieces)


def vocabulary_of(pieces: Sequence[bytes]) -> Vocabulary:
    """Return a vocabulary of `pieces`, then a stop, padding, and the markers of Gemma's calls."""
    known = {piece: token for token, piece in reversed([*enumerate(pieces)])}
    longest, size = max(map(len, pieces)), len(pieces)

    def encode(text: str) -> list[int]:
        raw, tokens, at = text.encode(errors="surrogatepass"), [], 0
        while at < len(raw):
            end = next(n for n in range(at + longest, at, -1) if raw[at:n] in known)
            tokens.append(known[raw[at:end]])
            at = min(end, len(raw))
        return tokens

    stop, pad, *markers = range(size, size + 5)
    return Vocabulary(
        [*pieces, *(b"",) * 5],
        control=[stop, pad, *markers],
        stops=[stop],
        pad=pad,
        thought=None,
        encode=encode,
        call=GemmaMarkers(*markers),
    )


def case_of(draw: Random) -> WalkCase:
    """Draw a grammar and a vocabulary of parts that may occur in its texts."""
    form = draw.choice(FORMS)
    spec: Spec
    if form in ("json", "gemma"):
        schema = _schema(draw, 0)
        words = [json.dumps(schema), json.dumps(schema, separators=(",", ":"))]
        if form == "json":
            spec = JsonSchema(
                schema,
                max_whitespace=draw.choice((1, 2, 8)),
                whitespace=draw.choice(("compact", "pretty", "any")),
                additional_properties=draw.choice(("closed", "schema")),
            )
        else:
            function = {"name": "go", "parameters": _object(draw, 0)}
            spec = Tools([{"type": "function", "function": function}], choice="required")
    else:
        text = _grammar(draw, lark=form == "lark")
        words, spec = [text.replace('"', "").replace("\\", "")], Grammar(text, syntax=form)
    return WalkCase(form, spec, _pieces(draw, words))


def _pieces(draw: Random, words: Sequence[str]) -> tuple[bytes, ...]:
    """Draw a vocabulary of all bytes, and of joined and cut parts of texts."""
    pieces = {bytes([byte]) for byte in range(256)}
    for _ in range(draw.choice((0, 20, 60, 120))):
        if draw.random() < 0.3:
            word = draw.choice(words).encode()
            begin = draw.randrange(len(word))
            piece = word[begin : begin + draw.randint(2, 9)]
        else:
            parts = draw.choices((*_PARTS, *_KEYS), k=draw.randint(1, 4))
            piece = "".join(parts).encode()[draw.choice((0, 0, 0, 1)) :][: draw.choice((4, 12, 24))]
        pieces.add(piece or b"ab")
    order = Random(draw.getrandbits(32))
    return tuple(order.sample(sorted(pieces), len(pieces)))


def _schema(draw: Random, depth: int) -> Any:
    kinds = (_object, _object, _array, _string, _number, _listed, _several)
    kind = draw.choice(
        kinds[: 7 if depth < 2 else 1] if depth == 0 else kinds[0 if depth < 2 else 3 : 6]
    )
    return kind(draw, depth)


def _object(draw: Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    names = draw.sample(_KEYS, draw.choice((0, 0, 1, 2, 3)))
    if names:
        schema["properties"] = {name: _value(draw, depth) for name in names}
        if required := [name for name in names if draw.random() < 0.5]:
            schema["required"] = required
    if draw.random() < 0.4 or not names:
        schema["additionalProperties"] = draw.choice((True, _value(draw, depth)))
    if draw.random() < 0.6:
        schema["minProperties"] = draw.randint(1, 3)
    if draw.random() < 0.15:
        schema["maxProperties"] = draw.randint(schema.get("minProperties", 1), 4)
    keys = draw.random()
    if keys < 0.1:
        schema["propertyNames"] = {
            "pattern": draw.choice(("^[a-c]$", "^[ab]{1,2}$", "^a+$", "^.b?"))
        }
    elif keys < 0.15:
        schema["propertyNames"] = {"enum": draw.sample(_KEYS, 5)}
    elif keys < 0.2:
        schema["propertyNames"] = {"maxLength": draw.randint(1, 2)}
    elif keys < 0.3:
        schema["patternProperties"] = {draw.choice(("^a", "^[a-c]$", "b")): _value(draw, depth)}
    return schema


def _value(draw: Random, depth: int) -> Any:
    """Draw the schema of a member or an item, often a short one."""
    if draw.random() < 0.4:
        return draw.choice(({}, {"const": 0}, {"type": "null"}, {"type": "integer"}))
    return _schema(draw, depth + 1)


def _array(draw: Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array", "items": _value(draw, depth)}
    if draw.random() < 0.6:
        schema["minItems"] = draw.randint(1, 4)
    if draw.random() < 0.3:
        schema["maxItems"] = draw.randint(schema.get("minItems", 1), 5)
    if draw.random() < 0.5:
        schema["uniqueItems"] = True
    if draw.random() < 0.1:
        schema["prefixItems"] = [_value(draw, depth) for _ in range(draw.randint(1, 2))]
    return schema


def _string(draw: Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    kind = draw.random()
    if kind < 0.3:
        schema["minLength"] = draw.randint(0, 9)
        schema["maxLength"] = draw.randint(schema["minLength"], 12)
    elif kind < 0.6:
        patterns = "^[ab]{2,9}$", "^(ab|é)+$", '^.*"$', "^[0-9]{3}-[a-z]*$", "^\\S+ \\S+$", "a.c"
        schema["pattern"] = draw.choice(patterns)
    return schema


def _number(draw: Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": draw.choice(("integer", "number"))}
    if draw.random() < 0.5:
        schema["minimum"] = draw.choice((-12, 0, 7, 1000))
    if draw.random() < 0.3:
        schema["maximum"] = schema.get("minimum", 0) + draw.choice((0, 3, 999))
    return schema


def _listed(draw: Random, depth: int) -> dict[str, Any]:
    values = (None, True, 0, "a", "ab", "日本", 1.5, [1, {"a": 2}], {"b": [], "a": "x"}, 'q"\\')
    return {"enum": draw.sample(values, draw.randint(1, 4))}


def _several(draw: Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_schema(draw, depth + 1) for _ in range(draw.randint(2, 3))]}


def _grammar(draw: Random, lark: bool) -> str:
    """Draw rules whose first option always ends."""
    literals = ("a", "ab", "abc", "(", ")", "+", ",", " ", "é", "日本", "x1", "name: ", "begin")
    classes = ("[a-c]", "[0-9]", "[^,)]", "[a-zé]")
    first, sign = ("start", ":") if lark else ("root", "::=")
    names = [first, *(f"r{i}" for i in range(1, draw.randint(1, 4)))]

    def part(rules: Sequence[str]) -> str:
        kind = draw.random()
        if rules and kind < 0.35:
            text = draw.choice(rules)
        elif kind < 0.7:
            text = f'"{draw.choice(literals)}"'
        else:
            text = draw.choice(classes)
            text = f"/{text}/" if lark else text
        low = draw.randint(0, 4)
        times = "~{}..{}" if lark else "{{{},{}}}"
        counted = times.format(low, low + draw.randint(0, 5) or 1)
        return text + draw.choice(("", "", "", "?", "*", "+", counted))

    lines = []
    for i, name in enumerate(names):
        options = [[part(names[i + 1 :]) for _ in range(draw.randint(1, 3))]]
        for _ in range(draw.randint(0, 2)):
            begin = f'"{draw.choice(literals)}"'
            options.append([begin, *(part(names) for _ in range(draw.randint(0, 3)))])
        lines.append(f"{name} {sign} " + " | ".join(" ".join(option) for option in options))
    return "\n".join(lines)
