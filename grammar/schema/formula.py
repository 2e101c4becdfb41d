"""Conditions on a JSON value: subschemas, and what "and", "or" and "not" make of them.

Knows no keyword. Equal conditions are equal objects to a dictionary, so whatever is found out about
one is kept by it.

One JSON value, equal to what JSON Schema takes for equal: 1 and 1.0, but not 1 and true.

Patterns that no automaton can read, judged on finished texts by the `regex` library.

It backtracks, so each look has a limit in seconds, and all looks of one check share another.
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
    """A condition."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Leaf(Formula):
    """What a subschema says, or, not `wanted`, its opposite."""

    source: Source
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class Every(Formula):
    """All of `parts`; of none, anything fits."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Some(Formula):
    """At least one of `parts`; of none, nothing fits."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class ExactlyOne(Formula):
    """One of `parts`, and no other."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Conditional(Formula):
    """`then` where `test` fits, `otherwise` where it does not."""

    test: Formula
    then: Formula
    otherwise: Formula


TRUE, FALSE = Every(()), Some(())


def every(*parts: Formula) -> Formula:
    flat: dict[Formula, None] = {}
    for part in parts:
        if part == FALSE:
            return FALSE
        flat.update(dict.fromkeys(part.parts if isinstance(part, Every) else (part,)))
    return next(iter(flat)) if len(flat) == 1 else Every(tuple(flat))


def some(*parts: Formula) -> Formula:
    flat: dict[Formula, None] = {}
    for part in parts:
        if part == TRUE:
            return TRUE
        flat.update(dict.fromkeys(part.parts if isinstance(part, Some) else (part,)))
    return next(iter(flat)) if len(flat) == 1 else Some(tuple(flat))


def complement(formula: Formula) -> Formula:
    """The opposite, with the negation pushed inward to the leaves."""
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
            pairs = (every(one, other) for i, one in enumerate(parts) for other in parts[i + 1 :])
            return some(every(*map(complement, parts)), *pairs)
    raise TypeError(formula)


def pairs(formula: Formula) -> int:
    """How many pairs of alternatives its opposite is made of."""
    match formula:
        case Every(parts) | Some(parts):
            return sum(map(pairs, parts))
        case ExactlyOne(parts):
            return len(parts) * (len(parts) - 1) // 2 + sum(map(pairs, parts))
        case Conditional(_, then, otherwise):
            return pairs(then) + pairs(otherwise)
    return 0


def place(formula: Formula) -> str:
    """The JSON pointer of its first subschema."""
    while not isinstance(formula, Leaf):
        match formula:
            case Conditional(test=first) | Every((first, *_)) | Some((first, *_)):
                formula = first
            case ExactlyOne((first, *_)):
                formula = first
            case _:
                return ""
    return formula.source.where


_MOST_WRITTEN_OUT = 10**21  # from here on JavaScript, too, writes an exponent


@dataclass(frozen=True, slots=True)
class Constant:
    """Compared by `identity`."""

    value: Any = field(compare=False)
    identity: Hashable
    parts: "tuple[Constant, ...]" = field(default=(), compare=False)  # of an array or an object

    @property
    def kind(self) -> str:
        return kind(self.value)


def constant(value: Any) -> Constant:
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
    """One of the six types of JSON."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def exact(number: int | float) -> Fraction | int:
    """A number as its shortest decimal says it."""
    if isinstance(number, int):
        return number
    if not math.isfinite(number):
        raise InvalidGrammarError("JSON schema", "a number is larger than a double can be")
    return int(number) if number == int(number) else Fraction(repr(number))


def spellings(number: int | float, plain: bool = False) -> tuple[str, ...]:
    """Return how a number is written: as an integer where it is one, and as the schema has it; if
    `plain`, an integer is written in digits alone."""
    if isinstance(number, int):
        return (str(number),)
    if number != int(number) or (abs(number) >= _MOST_WRITTEN_OUT and not plain):
        return (json.dumps(number),)
    return (str(int(number)),) if plain else (str(int(number)), json.dumps(number))


_LONGEST = 10_000  # characters of a pattern
_ONE = 0.25  # seconds of one look
_ALL = 1.0  # seconds of all looks at one value
_PIECE = re.compile(r"\\k<|\\z|\\.|\[\^?|\]|\$", re.DOTALL)


class TooLongError(Exception):
    """It took too long to say whether a pattern matches."""


class Backtracking:
    """Judges the patterns of one check."""

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
    """Whether the library can read a pattern."""
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
    """With `$` at the end of the text only, and references as the library writes them."""
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
