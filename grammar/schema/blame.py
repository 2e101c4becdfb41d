"""Which part of a schema is why no value fits the whole. Knows no keyword."""

from collections.abc import Callable, Iterator

from dlm.grammar.schema.facets import KINDS, Arrays, Objects
from dlm.grammar.schema.formula import FALSE, Formula, place
from dlm.grammar.schema.normal import NormalForm
from dlm.grammar.schema.shapes import Shapes


def blamed(formula: Formula, normal: NormalForm, shapes: Callable[[Formula, str], Shapes]) -> str:
    """The JSON pointer of an innermost part that is required and that no value fits.

    `shapes` has the alternatives of a condition for values of a type.
    """
    seen: set[Formula] = set()
    while formula not in seen:
        seen.add(formula)
        for part in _required(formula, normal, shapes):
            found = (shape for kind in KINDS for shape in shapes(part, kind))
            if part not in (FALSE, *seen) and not any(map(normal.fits_some, found)):
                formula = part
                break
    return place(formula)


def _required(
    formula: Formula, normal: NormalForm, shapes: Callable[[Formula, str], Shapes]
) -> Iterator[Formula]:
    """What the first item and the required properties of its values have to fit."""
    for shape in (shape for kind in ("object", "array") for shape in shapes(formula, kind)):
        match shape.facets:
            case Objects():
                yield from (normal.value_of(shape.facets, n) for n in shape.facets.required)
            case Arrays(low=low) if low:
                yield shape.facets.item(0)
