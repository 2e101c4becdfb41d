"""Conditions on a JSON value: subschemas combined by "and", "or", "not" and "exactly one".

Equal conditions compare equal, so that results about them can be cached in dictionaries.
`Constant` is a JSON value with the equality of JSON Schema: 1 equals 1.0, but not true.
`Backtracking` matches patterns that have no automaton against finished texts by the `regex`
library, within limits of time. Knows no keyword.
"""

import json
import math
import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from time import monotonic
from typing import Any

import regex

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.schema.documents import Source


class Formula:
    """Base class of conditions on a JSON value."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Leaf(Formula):
    """The condition of a subschema, or its complement if not `wanted`."""

    source: Source
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class Every(Formula):
    """Conjunction of `parts`; without parts, every value fits."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Some(Formula):
    """Disjunction of `parts`; without parts, no value fits."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class ExactlyOne(Formula):
    """Condition that exactly one of `parts` is true."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Conditional(Formula):
    """Condition `then` for values that fit `test`, and `otherwise` for the others."""

    test: Formula
    then: Formula
    otherwise: Formula


TRUE, FALSE = Every(()), Some(())


def every(*parts: Formula) -> Formula:
    """Return the conjunction of `parts`, flattened and simplified."""
    return _flat(Every, FALSE, parts)


def some(*parts: Formula) -> Formula:
    """Return the disjunction of `parts`, flattened and simplified."""
    return _flat(Some, TRUE, parts)


def _flat(
    kind: type[Every] | type[Some], absorbing: Formula, parts: tuple[Formula, ...]
) -> Formula:
    flat: dict[Formula, None] = {}
    for part in parts:
        if part == absorbing:
            return absorbing
        flat.update(dict.fromkeys(part.parts if isinstance(part, kind) else (part,)))
    return next(iter(flat)) if len(flat) == 1 else kind(tuple(flat))


def complement(formula: Formula) -> Formula:
    """Return the negation of `formula`, pushed inward to the leaves."""
    match formula:
        case Leaf(source, wanted):
            return Leaf(source, not wanted)
        case Every(parts):
            return some(*map(complement, parts))
        case Some(parts):
            return every(*map(complement, parts))
        case Conditional(test, then, otherwise):
            return Conditional(test, complement(then), complement(otherwise))
        case ExactlyOne(parts):
            both = (every(one, other) for i, one in enumerate(parts) for other in parts[i + 1 :])
            return some(every(*map(complement, parts)), *both)
    raise TypeError(formula)


def count_pairs(formula: Formula) -> int:
    """Return how many pairs of alternatives the complement of `formula` contains."""
    match formula:
        case Every(parts) | Some(parts):
            return sum(map(count_pairs, parts))
        case ExactlyOne(parts):
            return len(parts) * (len(parts) - 1) // 2 + sum(map(count_pairs, parts))
        case Conditional(_, then, otherwise):
            return count_pairs(then) + count_pairs(otherwise)
    return 0


def pointer_of(formula: Formula) -> str:
    """Return the JSON pointer of the first subschema of `formula`; empty if it has none."""
    while not isinstance(formula, Leaf):
        match formula:
            case Conditional(test=first) | Every((first, *_)) | Some((first, *_)):
                formula = first
            case ExactlyOne((first, *_)):
                formula = first
            case _:
                return ""
    return formula.source.where


_MOST_WRITTEN_OUT = 10**21  # JavaScript writes an exponent from this number on


@dataclass(frozen=True, slots=True)
class Constant:
    """A JSON value, compared by `identity`."""

    value: Any = field(compare=False)
    identity: Hashable
    parts: "tuple[Constant, ...]" = field(default=(), compare=False)  # items, or property values

    @property
    def kind(self) -> str:
        return kind(self.value)


def constant(value: Any) -> Constant:
    """Return `value`, parsed JSON, as a `Constant`."""
    if isinstance(value, dict):
        parts = tuple(map(constant, value.values()))
        named = zip(value, (part.identity for part in parts), strict=True)
        return Constant(value, ("object", frozenset(named)), parts)
    if isinstance(value, list):
        parts = tuple(map(constant, value))
        return Constant(value, ("array", tuple(part.identity for part in parts)), parts)
    if isinstance(value, bool) or value is None:
        return Constant(value, (str(value), None))
    return Constant(value, value if isinstance(value, str) else exact(value))


def kind(value: Any) -> str:
    """Return the JSON type of `value`, one of six: integers are numbers."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def exact(number: int | float) -> Fraction | int:
    """Return the exact decimal value. Raises `InvalidGrammarError` for infinity and NaN."""
    if isinstance(number, int):
        return number
    if not math.isfinite(number):
        raise InvalidGrammarError("JSON schema", "a number is larger than a double can be")
    return int(number) if number == int(number) else Fraction(repr(number))


def spellings(number: int | float, plain: bool = False) -> tuple[str, ...]:
    """Return the spellings of a number; if `plain`, integers consist of digits only."""
    if isinstance(number, int):
        return (str(number),)
    if number != int(number) or (abs(number) >= _MOST_WRITTEN_OUT and not plain):
        return (json.dumps(number),)
    return (str(int(number)),) if plain else (str(int(number)), json.dumps(number))


_LONGEST = 10_000  # characters of a pattern
_ONE = 0.25  # seconds for one match
_ALL = 1.0  # seconds for all matches of one check
_PIECE = re.compile(r"\\k<|\\z|\\.|\[\^?|\]|\$", re.DOTALL)


class TooLongError(Exception):
    """Matching a pattern took too long."""


class Backtracking:
    """Matcher of patterns for one check, with limits of time per match and in total."""

    def __init__(self):
        self._left = _ALL

    def fits(self, pattern: str, text: str) -> bool:
        """Whether the pattern matches a part of the text. Raises `TooLongError`."""
        compiled = _compiled(pattern)
        if compiled is None or self._left <= 0:
            raise TooLongError
        begin = monotonic()
        try:
            return compiled.search(text, timeout=min(_ONE, self._left)) is not None
        except TimeoutError as error:
            raise TooLongError from error
        finally:
            self._left -= monotonic() - begin


def can_be_judged(pattern: str) -> bool:
    """Whether the `regex` library can compile `pattern`."""
    return _compiled(pattern) is not None


def _compiled(pattern: str) -> regex.Pattern[str] | None:
    return _read(pattern) if len(pattern) <= _LONGEST else None


@lru_cache(maxsize=64)
def _read(pattern: str) -> regex.Pattern[str] | None:
    flags = regex.UNICODE if re.search(r"\\[pP]\{", pattern) else regex.ASCII
    try:
        return regex.compile(_as_ecmascript(pattern), flags)
    except (regex.error, RecursionError, OverflowError, ValueError):
        return None


def _as_ecmascript(pattern: str) -> str:
    """Translate ECMAScript's `$`, `\\z` and named references to the library's syntax."""
    within = False

    def piece(found: re.Match[str]) -> str:
        nonlocal within
        text = found[0]
        if text == "]" or text[0] == "[":
            within = text != "]" and (within or text[0] == "[")
        elif not within:
            return {"$": r"\Z", r"\z": r"\Z", r"\k<": r"\g<"}.get(text, text)
        return text

    return _PIECE.sub(piece, pattern)
