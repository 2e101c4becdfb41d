"""Conditions on a JSON value: subschemas combined by "and", "or", "not" and "exactly one".

Equal conditions of one schema compare equal, so that results about them can be cached in
dictionaries.
"""

from dataclasses import dataclass

from dlm.grammar.schema.documents import Source


class Formula:
    """Base class of conditions on a JSON value."""

    __slots__ = ()


class Leaf(Formula):
    """The condition of a subschema, or its complement if not `positive`.

    A leaf equals only itself, so each subschema has one.
    """

    __slots__ = ("_opposite", "positive", "source")
    __match_args__ = ("source", "positive")

    def __init__(self, source: Source, positive: bool = True):
        self.source, self.positive = source, positive
        self._opposite: Leaf | None = None

    @property
    def opposite(self) -> "Leaf":
        """The complement; its own opposite is this leaf."""
        if self._opposite is None:
            self._opposite = Leaf(self.source, not self.positive)
            self._opposite._opposite = self
        return self._opposite


class Compound(Formula):
    """Base class of conditions made of others. Each computes its hash once."""

    __slots__ = ("_hash",)

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            values = [getattr(self, name) for name in self.__match_args__]  # pyright: ignore[reportAttributeAccessIssue]
            object.__setattr__(self, "_hash", hash((type(self), *values)))
            return self._hash


@dataclass(frozen=True, slots=True)
class Every(Compound):
    """Conjunction of `parts`; without parts, every value fits."""

    parts: tuple[Formula, ...]

    __hash__ = Compound.__hash__


@dataclass(frozen=True, slots=True)
class Some(Compound):
    """Disjunction of `parts`; without parts, no value fits."""

    parts: tuple[Formula, ...]

    __hash__ = Compound.__hash__


@dataclass(frozen=True, slots=True)
class ExactlyOne(Compound):
    """Condition that exactly one of `parts` is true."""

    parts: tuple[Formula, ...]

    __hash__ = Compound.__hash__


@dataclass(frozen=True, slots=True)
class Conditional(Compound):
    """Condition `then` for values that fit `test`, and `otherwise` for the others."""

    test: Formula
    then: Formula
    otherwise: Formula

    __hash__ = Compound.__hash__


TRUE, FALSE = Every(()), Some(())  # the only ones without parts


def every(*parts: Formula) -> Formula:
    """Return the conjunction of `parts`, flattened and simplified."""
    if len(parts) == 1:  # any other conjunction is made here, so it is simple
        return parts[0]
    return _flat(Every, parts, TRUE, FALSE)


def some(*parts: Formula) -> Formula:
    """Return the disjunction of `parts`, flattened and simplified."""
    return _flat(Some, parts, FALSE, TRUE)


def _flat(
    kind: type[Every] | type[Some],
    parts: tuple[Formula, ...],
    neutral: Formula,
    absorbing: Formula,
) -> Formula:
    flat: dict[Formula, None] = {}
    for part in parts:
        if part is absorbing:
            return absorbing
        if isinstance(part, kind):
            flat.update(dict.fromkeys(part.parts))
        else:
            flat[part] = None
    if len(flat) == 1:
        return next(iter(flat))
    return kind(tuple(flat)) if flat else neutral


def complement(formula: Formula) -> Formula:
    """Return the negation of `formula`, pushed inward to the leaves."""
    match formula:
        case Leaf():
            return formula.opposite
        case Every(parts):
            return some(*map(complement, parts))
        case Some(parts):
            return every(*map(complement, parts))
        case Conditional(test, then, otherwise):
            return Conditional(test, complement(then), complement(otherwise))
        case ExactlyOne(parts):
            both = (every(part, other) for i, part in enumerate(parts) for other in parts[i + 1 :])
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
            case Conditional(test=part) | Every((part, *_)) | Some((part, *_)):
                formula = part
            case ExactlyOne((part, *_)):
                formula = part
            case _:
                return ""
    return formula.source.where
