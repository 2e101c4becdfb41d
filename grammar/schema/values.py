"""Whether a value fits a condition, as JSON Schema says: objects are never closed here.

Knows alternatives, not how they are found.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection

from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.schema.constant import Constant, constant, exact
from dlm.grammar.schema.facets import (
    EMPTY,
    Arrays,
    Clause,
    Facets,
    Numbers,
    Objects,
    Shape,
    Strings,
)
from dlm.grammar.schema.formula import FALSE, TRUE, Formula, every
from dlm.grammar.schema.languages import Languages
from dlm.grammar.schema.work import Work

MOST_TRIED = 64  # values of a shape that are looked at to see whether one fits


class Values(ABC):
    """Judges values by the alternatives of conditions."""

    def __init__(self, languages: Languages, work: Work):
        self.languages, self.work = languages, work
        self._sets: dict[int, tuple[tuple[Constant, ...], frozenset[Constant]]] = {}

    @abstractmethod
    def shapes(self, formula: Formula, kind: str) -> tuple[Shape, ...]:
        """The alternatives for values of a type."""

    def property(self, clause: Clause, name: str) -> Formula:
        """What a clause says of the value of a property.

        Where readers disagree whether a pattern matches the name, both that and the rest.
        """
        parts = [value for key, value in clause.properties if key == name]
        doubtful = []
        for pattern, value in clause.patterns:
            if self.languages.of("pattern", pattern).accepts(name):
                parts.append(value)
            elif not self.languages.of("pattern", pattern, False).accepts(name):
                doubtful.append(value)
        return every(*(parts or (clause.rest,)), *doubtful)

    def value_of(self, objects: Objects, name: str) -> Formula:
        """What all clauses say of it; FALSE if there must be no such property."""
        if not all(self.admits(key, constant(name)) for key in objects.names):
            return FALSE
        return every(*(self.property(clause, name) for clause in objects.clauses))

    def admits(self, formula: Formula, value: Constant) -> bool:
        """Whether a value fits."""
        return formula == TRUE or any(
            self.admits_shape(shape, value) for shape in self.shapes(formula, value.kind)
        )

    def admits_shape(self, shape: Shape, value: Constant) -> bool:
        listed = shape.values is None or value in self._set(shape.values)
        return listed and self.admits_facets(shape.facets, value)

    def _set(self, values: tuple[Constant, ...]) -> Collection[Constant]:
        if len(values) <= MOST_TRIED:
            return values
        if id(values) not in self._sets:
            self._sets[id(values)] = values, frozenset(values)  # kept, so that its id stays its own
        return self._sets[id(values)][1]

    def admits_facets(self, facets: Facets | None, value: Constant) -> bool:
        self.work.count(1 + len(value.parts) // 16, "")
        match facets:
            case Strings():
                return facets == EMPTY["string"] or self.languages.admits(facets, value.value)
            case Numbers():
                return facets == EMPTY["number"] or facets.admits(exact(value.value))
            case Arrays():
                return self._admits_array(facets, value.parts)
            case Objects():
                return self._admits_object(facets, dict(zip(value.value, value.parts, strict=True)))
        return True

    def _admits_array(self, arrays: Arrays, items: tuple[Constant, ...]) -> bool:
        again = len(set(items)) < len(items)
        if len(items) < arrays.low or (arrays.high is not None and len(items) > arrays.high):
            return False
        if (arrays.unique and again) or (arrays.repeats and not again):
            return False
        for wanted in arrays.contains:
            number = sum(self.admits(wanted.item, item) for item in items[wanted.start :])
            if number < wanted.low or (wanted.high is not None and number > wanted.high):
                return False
        return all(self.admits(arrays.item(i), item) for i, item in enumerate(items))

    def _admits_object(self, objects: Objects, parts: dict[str, Constant]) -> bool:
        if len(parts) < objects.low or (objects.high is not None and len(parts) > objects.high):
            return False
        return (
            all(name in parts for name in objects.required)
            and all(self.admits(self.value_of(objects, n), part) for n, part in parts.items())
            and all(
                any(self._names(keys, n) and self.admits(f, part) for n, part in parts.items())
                for keys, f in objects.some
            )
        )

    def _names(self, keys: Automaton | Formula, name: str) -> bool:
        if isinstance(keys, Formula):
            return self.admits(keys, constant(name))
        return keys.accepts(name)
