"""Extents of conditions, by which alternatives are found to have no value in common.

An extent has a list of values, or limits of a size, for each type: the number itself, a string's
characters, the items of an array, the properties of an object. That of an object has the extents of
its required properties too. Two extents may be apart without that their automata are made. Knows no
keyword and no grammar.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from fractions import Fraction

from dlm.grammar.immutable import immutable
from dlm.grammar.schema.conditions import (
    Alternative,
    Arrays,
    Bound,
    Facets,
    Numbers,
    Objects,
    Shapes,
    Strings,
    closed_names,
    required_names,
)
from dlm.grammar.schema.constants import Constant, exact

_MOST_PIECES = 8  # of one type in an extent
_MOST_READ, _MOST_NAMES = 32, 8  # required properties of one alternative: read, and compared
_MOST_WEIGHT = 64  # pieces of one alternative's properties, those within each other included


@immutable()
class Piece:
    """Values of one type: those listed, or all whose size is within bounds, and whose `properties`
    are there and within extents of their own."""

    values: frozenset[Constant] | None = None
    low: Bound | None = None
    high: Bound | None = None
    properties: "Mapping[str, Extent]" = field(default_factory=dict)

    @property
    def weight(self) -> int:
        """The number of pieces in it."""
        return 1 + sum(map(weight_of_extent, self.properties.values()))

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


PropertyExtent = Callable[[Objects, str], Extent]  # of the values of a required property


def extent_of(shapes: Shapes, property_extent: PropertyExtent) -> Sequence[Piece]:
    """Return the extent of `shapes`, the alternatives of one condition for one type."""
    if len(shapes) > _MOST_PIECES:
        return (Piece(),)
    return [_piece(shape, property_extent) for shape in shapes]


def _piece(shape: Alternative, property_extent: PropertyExtent) -> Piece:
    if shape.values is not None:
        return Piece(frozenset(shape.values))
    match shape.facets:
        case Numbers(low, high):
            return Piece(None, low, high)
        case Strings(low, high) | Arrays(low=low, high=high) | Objects(low=low, high=high):
            most = None if high is None else (high, True)
            return Piece(None, (low, True), most, _properties(shape.facets, property_extent))
    return Piece()


def _properties(facets: Facets | None, property_extent: PropertyExtent) -> dict[str, Extent]:
    """Return the extents of some required properties: those with listed values before objects, and
    objects before others."""
    if not isinstance(facets, Objects):
        return {}
    extents = {name: property_extent(facets, name) for name in facets.required[:_MOST_READ]}
    compared: dict[str, Extent] = {}
    weight = 0
    for name in sorted(extents, key=lambda name: _rank(extents[name])):
        weight += weight_of_extent(extents[name])
        if len(compared) == _MOST_NAMES or weight > _MOST_WEIGHT:
            break
        compared[name] = extents[name]
    return compared


def _rank(extent: Extent) -> int:
    pieces = [piece for some_pieces in extent.values() for piece in some_pieces]
    if all(piece.values is not None for piece in pieces):
        return 0
    return 1 if any(piece.properties for piece in pieces) else 2


def weight_of_extent(extent: Extent) -> int:
    return sum(piece.weight for pieces in extent.values() for piece in pieces)


class Comparison:
    """Comparison of extents; it counts the `pairs` of pieces that it looks at."""

    def __init__(self) -> None:
        self.pairs = 0

    def apart(self, extent: Extent, other: Extent) -> bool:
        """Whether no value is in both extents."""
        return all(
            self._pieces_apart(mine, its)
            for kind in extent.keys() & other.keys()
            for mine in extent[kind]
            for its in other[kind]
        )

    def _pieces_apart(self, piece: Piece, other: Piece) -> bool:
        self.pairs += 1
        if piece.values is not None and other.values is not None:
            return piece.values.isdisjoint(other.values)
        if piece.values is not None:
            return not any(other.may_have(value) for value in piece.values)
        if other.values is not None:
            return self._pieces_apart(other, piece)
        if _gap(piece.high, other.low) or _gap(other.high, piece.low):
            return True
        mine, its = piece.properties, other.properties
        return any(self.apart(mine[name], its[name]) for name in mine if name in its)


class ComparedBranch:
    """One of several alternatives of a value, with what is compared of it: its extent, and the
    names of its properties."""

    def __init__(self, shapes: Shapes, kind: str, property_extent: PropertyExtent):
        self._extent: Extent = {kind: [_piece(shape, property_extent) for shape in shapes]}
        needs: set[str] | None = None
        self._names: set[str] | None = set()
        for shape in shapes:
            mine = set() if shape.values is not None else required_names(shape)
            needs = mine if needs is None else needs & mine
            names = closed_names(shape)
            if self._names is not None:
                self._names = None if names is None else self._names | names
        self._needs = needs or set()

    def apart(self, other: "ComparedBranch", comparison: Comparison) -> bool:
        """Whether no value of this branch fits `other`, as far as their extents show."""
        return comparison.apart(self._extent, other._extent)

    def foreign(self, other: "ComparedBranch") -> str | None:
        """Return a property that `other` requires and that this branch, closed, does not name."""
        if self._names is None:
            return None
        return min(other._needs - self._names, default=None)
