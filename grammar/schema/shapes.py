"""Small questions about the shapes of a normal form."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dlm.grammar.schema.constant import Constant
from dlm.grammar.schema.facets import Arrays, Clause, Facets, Objects, Shape
from dlm.grammar.schema.formula import FALSE, TRUE, Formula, some

Shapes = tuple[Shape, ...]


def with_evaluated(facets: Facets | None, rest: Formula) -> Facets | None:
    """With `unevaluatedItems` or `unevaluatedProperties` of `rest`: then all is evaluated."""
    if isinstance(facets, Arrays):
        if facets.evaluated is not None:
            prefix = (TRUE,) * facets.evaluated
            facets = facets.both(Arrays(prefix, some(rest, *facets.matched)))
        return replace(facets, evaluated=None)
    if isinstance(facets, Objects):
        known, patterns, everything = facets.evaluated
        if not everything:
            properties = tuple((name, TRUE) for name in sorted(known))
            clause = Clause(properties, tuple((p, TRUE) for p in sorted(patterns)), rest)
            facets = replace(facets, clauses=(*facets.clauses, clause))
        opened = facets.opened or rest != FALSE
        return replace(facets, evaluated=(known, patterns, True), opened=opened)
    return facets


def closed_names(shape: Shape) -> set[str] | None:
    """Of a closed object; None if it may have others."""
    facets = shape.facets
    if not isinstance(facets, Objects) or facets.opened or shape.values is not None:
        return None
    names = set(facets.all_names())
    return names if names or facets.named else None


def last_named(own: Shape, combined: Shapes, found: Sequence[Shape]) -> Sequence[Shape]:
    """Return `found`, of both, with the order in which the `own` properties are the last ones."""
    mine = own.facets.all_names() if isinstance(own.facets, Objects) else {}
    others = [
        name
        for shape in combined
        if isinstance(shape.facets, Objects)
        for name in shape.facets.order or shape.facets.all_names()
    ]
    order = tuple(dict.fromkeys((*others, *mine)))
    if not mine or not others or order == tuple(dict.fromkeys((*mine, *others))):
        return found
    return [
        replace(shape, facets=replace(shape.facets, order=order))
        if isinstance(shape.facets, Objects)
        else shape
        for shape in found
    ]


def required_names(shape: Shape) -> set[str]:
    return set(shape.facets.required) if isinstance(shape.facets, Objects) else set()


def weight_of(shape: Shape) -> int:
    facets = shape.facets
    return len(facets.clauses) + len(facets.required) // 4 if isinstance(facets, Objects) else 0


def disjoint(sets: Iterable[set[Constant]]) -> bool:
    seen: set[Constant] = set()
    for values in sets:
        if seen & values:
            return False
        seen |= values
    return True


def merged(shapes: Sequence[Shape]) -> Shapes:
    """Without repetitions; those that differ in listed values only, as one."""
    found: dict[Shape, dict[Constant, None] | None] = {}
    for shape in shapes:
        if shape.values is None:
            found[shape] = None
        else:
            alike = replace(shape, values=())
            values = found.setdefault(alike, {})
            if values is not None:
                values.update(dict.fromkeys(shape.values))
    return tuple(
        shape if values is None else replace(shape, values=tuple(values))
        for shape, values in found.items()
    )
