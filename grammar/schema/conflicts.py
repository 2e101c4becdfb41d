"""Conflicts between the keywords of one schema, and between schemas of the same value.

Knows the keywords that list values or combine schemas; what other keywords mean is in the
alternatives of each condition.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from dlm.grammar.schema import constants
from dlm.grammar.schema.conditions import KINDS, Alternative, Shapes
from dlm.grammar.schema.constants import constant, exact
from dlm.grammar.schema.documents import Source
from dlm.grammar.schema.formulas import FALSE, Every, ExactlyOne, Formula, Leaf, pointer_of
from dlm.grammar.schema.keywords import Keywords
from dlm.grammar.schema.normal import NormalForm

_MOST_PARTS = 12  # schemas of one value that are compared in pairs
_MOST_PAIRS = 64  # of alternatives of two schemas, for values of one type


@dataclass(frozen=True)
class _Part:
    """One of several conditions on a value: its name in messages, and its alternatives by type."""

    name: str
    formula: Formula | None  # None: the keywords of the schema itself
    shapes: dict[str, Shapes]
    named: Sequence[str] = ()  # its `type`, if it has one

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, shapes in self.shapes.items() if shapes]

    @property
    def types(self) -> str:
        return _enumerated(self.named or self.kinds)


class Conflicts:
    """Search for conflicts among the conditions on one value."""

    def __init__(self, normal: NormalForm, keywords: Keywords):
        self._normal, self._keywords = normal, keywords

    def parts(self, formula: Formula) -> list[Formula]:
        """Return the conditions that `formula` puts on the same value by other schemas."""
        match formula:
            case Leaf(source, True):
                parts = (part for _, part in self._keywords.conjuncts(source))
                return [part for part in parts if not _is_false(part)]
            case Every(parts) if len(parts) > 1:
                return list(parts)
        return []

    def of_lists(self, formula: Formula) -> str:
        """Return how `const`, `enum` and `type` of one schema contradict each other, or ""."""
        if not isinstance(formula, Leaf) or not formula.positive:
            return ""
        node = formula.source.node
        listed = node.get("enum")
        if listed == []:
            return "enum is empty: it has to list a value"
        const = f"{json.dumps(node.get('const'), ensure_ascii=False):.40}"
        if "const" in node and listed and constant(node["const"]) not in map(constant, listed):
            return f"const {const} is not in enum: it has to be one of its values"
        if (types := node.get("type")) is None:
            return ""
        if "const" in node and not _has_type(node["const"], types):
            return f"const {const} is not of the type {_enumerated(types, 'or')}"
        if listed and not any(_has_type(value, types) for value in listed):
            return f"enum lists no value of the type {_enumerated(types, 'or')}"
        return ""

    def of_one_of(self, formula: Formula) -> str:
        """Return which schemas of `oneOf` every value fits at once that fits one of them, or ""."""
        if not isinstance(formula, Leaf) or not formula.positive:
            return ""
        every_part = self._split(formula)
        chosen = [part for part in every_part if isinstance(part.formula, ExactlyOne)]
        if len(chosen) != 1 or not isinstance(chosen[0].formula, ExactlyOne):
            return ""
        options = chosen[0].formula.parts
        if len(options) > _MOST_PARTS:
            return ""
        others = [part.shapes for part in every_part if part is not chosen[0]]
        for (i, schema), (j, other) in combinations(enumerate(options), 2):
            branches = [{k: self._normal.shapes(o, k) for k in KINDS} for o in (schema, other)]
            if not self._common([*others, *branches]):
                continue
            if _node(schema) is not None and _node(schema) == _node(other):
                why = "are equal"
            else:
                why = "have values in common, and no other value fits"
            return (
                f"oneOf/{i} and oneOf/{j} {why}: oneOf takes values that fit exactly one of its "
                "schemas, anyOf those that fit at least one"
            )
        return ""

    def of_pairs(self, formula: Formula, of_shape: Callable[[Alternative], str]) -> str:
        """Return which two conditions of `formula` have no value in common, or "".

        `of_shape` returns why no value fits an alternative, if that is known.
        """
        parts = self._split(formula)
        for part in parts:
            if part.name == "not" and not part.kinds:
                return "not refuses every value: its schema has to leave some out"
            if part.name == "oneOf" and not part.kinds:
                return "no value fits exactly one schema of oneOf"
            if _is_false(part.formula):
                return f"{part.name} is false: no value fits it"
        for part, other in combinations(parts[:_MOST_PARTS], 2):
            if not part.kinds or not other.kinds:
                continue
            common = [kind for kind in part.kinds if kind in other.kinds]
            if not common:
                return (
                    f"{part.name} allows only {part.types}, and {other.name} only "
                    f"{other.types}: they need a type in common"
                )
            if self._common([part.shapes, other.shapes]) is not False:
                continue
            pairs = _combined(part.shapes, other.shapes)
            reasons = dict.fromkeys(filter(None, map(of_shape, pairs)))
            return next(iter(reasons), f"no value fits both {part.name} and {other.name}")
        return ""

    def _split(self, formula: Formula) -> list[_Part]:
        match formula:
            case Leaf(source, True):
                own = self._own(source)
                named = list(self._keywords.conjuncts(source))
                named += self._keywords.dependencies(source)
            case Every(parts):
                own, named = [], [(pointer_of(part) or "another schema", part) for part in parts]
            case _:
                return []
        return own + [
            _Part(
                name,
                part,
                {kind: self._normal.shapes(part, kind) for kind in KINDS},
                part.source.node.get("type", ())
                if isinstance(part, Leaf) and part.positive
                else (),
            )
            for name, part in named
        ]

    def _own(self, source: Source) -> list[_Part]:
        """Return the condition of the keywords of `source` that apply no schema to its value."""
        shapes = {kind: self._keywords.own(source, kind, annotate=False) for kind in KINDS}
        listed = {kind: () if shape is None else (shape,) for kind, shape in shapes.items()}
        words = [word for word in ("type", "const", "enum") if word in source.node]
        name = words[0] if words else "the schema itself"
        return [_Part(name, None, listed, source.node.get("type", ()))]

    def _common(self, conditions: list[dict[str, Shapes]]) -> bool | None:
        """Whether a value may fit all of `conditions`; None if that takes too long to find out."""
        start, *others = conditions
        for kind in KINDS:
            shapes = start[kind]
            for other in others:
                if len(shapes) * len(other[kind]) > _MOST_PAIRS:
                    return None
                pairs = _combined({kind: shapes}, other)
                shapes = tuple(filter(self._normal.fits_some, pairs))
            if shapes:
                return True
        return False


def _combined(condition: dict[str, Shapes], other: dict[str, Shapes]) -> Iterator[Alternative]:
    for kind, shapes in condition.items():
        yield from (a.both(b) for a in shapes for b in other[kind])


def _is_false(formula: Formula | None) -> bool:
    return formula is FALSE or (isinstance(formula, Leaf) and formula.source.node == {"not": {}})


def _node(formula: Formula) -> Any:
    """Return the schema of a single condition in a comparable form; None for others."""
    match formula:
        case Leaf(source, True):
            return constant(source.node)
        case Every(()):
            return constant({})
    return None


def _has_type(value: Any, types: list[str]) -> bool:
    integer = constants.kind(value) == "number" and exact(value) % 1 == 0
    return constants.kind(value) in types or (integer and "integer" in types)


def _enumerated(names: Sequence[str], word: str = "and") -> str:
    *others, last = names or ["(none is listed)"]
    return f"{', '.join(others)} {word} {last}" if others else last
