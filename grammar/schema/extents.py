"""Extents of conditions, by which alternatives are found to have no value in common.

An extent has a list of values, or limits of a size, for each type: the number itself, a string's
characters, the items of an array, the properties of an object. Two extents may be apart without
that their automata are made. Knows no keyword and no grammar.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dlm.grammar.schema.conditions import (
    Alternative,
    Arrays,
    Bound,
    Constant,
    Numbers,
    Objects,
    Shapes,
    Strings,
    closed_names,
    exact,
)

_MOST_PIECES = 8  # of one type in an extent
_MOST_NAMES = 8  # required properties of one alternative whose extents are compared


@dataclass(frozen=True, slots=True)
class Piece:
    """Values of one type: those listed, or all whose size is within bounds."""

    values: frozenset[Constant] | None = None
    low: Bound | None = None
    high: Bound | None = None

    def apart(self, other: "Piece") -> bool:
        """Whether no value is in both."""
        if self.values is not None and other.values is not None:
            return self.values.isdisjoint(other.values)
        if self.values is not None:
            return not any(other.may_have(value) for value in self.values)
        if other.values is not None:
            return other.apart(self)
        return _gap(self.high, other.low) or _gap(other.high, self.low)

    def may_have(self, value: Constant) -> bool:
        """Whether the size of `value` is within the bounds."""
        size = _size(value)
        at = None if size is None else (size, True)
        return not (_gap(at, self.low) or _gap(self.high, at))


Extent = Mapping[str, Sequence[Piece]]  # by type; a type that is missing has no values


def _gap(high: Bound | None, low: Bound | None) -> bool:
    """Whether all that ends with `high` is below all that begins with `low`."""
    if high is None or low is None:
        return False
    return high[0] < low[0] or (high[0] == low[0] and not (high[1] and low[1]))


def _size(value: Constant) -> Fraction | int | None:
    match value.kind:
        case "number":
            return exact(value.value)
        case "string" | "array" | "object":
            return len(value.value)
    return None


def extent_of(shapes: Shapes, kind: str) -> Sequence[Piece]:
    """Return the extent of `shapes`, the alternatives of one condition for the type `kind`."""
    pieces = [_piece(shape) for shape in shapes]
    return pieces if len(pieces) <= _MOST_PIECES else (Piece(),)


def _piece(shape: Alternative) -> Piece:
    if shape.values is not None:
        return Piece(frozenset(shape.values))
    match shape.facets:
        case Numbers(low, high):
            return Piece(None, low, high)
        case Strings(low, high) | Arrays(low=low, high=high) | Objects(low=low, high=high):
            return Piece(None, (low, True), None if high is None else (high, True))
    return Piece()


def extents_apart(one: Extent, other: Extent) -> bool:
    """Whether no value is in both extents."""
    return all(
        mine.apart(its)
        for kind in one.keys() & other.keys()
        for mine in one[kind]
        for its in other[kind]
    )


class ComparedBranch:
    """One of several alternatives of a value, with what is compared of it: its own extent, and
    those of its required properties."""

    def __init__(
        self, shapes: Shapes, kind: str, property_extent: Callable[[Objects, str], Extent]
    ):
        self._own: Extent = {kind: extent_of(shapes, kind)}
        self._properties: list[dict[str, Extent]] = []
        needs: set[str] | None = None
        self._names: set[str] | None = set()
        for shape in shapes:
            required = shape.facets.required if isinstance(shape.facets, Objects) else ()
            listed = shape.values is not None
            compared = {} if listed else dict.fromkeys(required[:_MOST_NAMES])
            facets = shape.facets
            self._properties.append(
                {name: property_extent(facets, name) for name in compared}
                if isinstance(facets, Objects)
                else {}
            )
            mine = set() if listed else set(required)
            needs = mine if needs is None else needs & mine
            names = closed_names(shape)
            if self._names is not None:
                self._names = None if names is None else self._names | names
        self._needs = needs or set()

    def apart(self, other: "ComparedBranch") -> bool:
        """Whether no value of this branch fits `other`, as far as their extents show."""
        return extents_apart(self._own, other._own) or all(
            any(extents_apart(mine[name], its[name]) for name in mine if name in its)
            for mine in self._properties
            for its in other._properties
        )

    def foreign(self, other: "ComparedBranch") -> str | None:
        """Return a property that `other` requires and that this branch, closed, does not name."""
        if self._names is None:
            return None
        return min(other._needs - self._names, default=None)
