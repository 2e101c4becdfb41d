"""Conditions on a JSON value: subschemas, and what "and", "or" and "not" make of them.

Knows no keyword. Equal conditions are equal objects to a dictionary, so whatever is found out about
one is kept by it.
"""

from dataclasses import dataclass

from dlm.grammar.schema.reader import Source


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
