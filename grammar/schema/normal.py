"""Normal form of a schema: for each type, alternatives of which a value has to fit at least one.

The form is disjunctive, with negation pushed inward, so that `not`, `if`, `oneOf`, dependencies and
unevaluated properties disappear. Parts that become too large or cannot be expressed are dropped and
recorded in `inexact`: the alternatives never allow less than the schema does. Work is counted.
A value is checked with the meaning of JSON Schema, which never closes an object. Knows no keyword.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import combinations
from typing import TypeVar

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import TooLargeError
from dlm.grammar.regex.lengths import any_of_length
from dlm.grammar.schema.conditions import (
    EMPTY,
    KINDS,
    Alternative,
    Arrays,
    Clause,
    Facets,
    Numbers,
    Objects,
    Shapes,
    Strings,
    closed_names,
    disjoint,
    last_named,
    merged,
    required_names,
    weight_of,
    with_choices,
    with_evaluated,
)
from dlm.grammar.schema.constants import Constant, constant, exact
from dlm.grammar.schema.documents import TooMuchWorkError
from dlm.grammar.schema.extents import ComparedBranch, Comparison, Extent, Piece, extent_of
from dlm.grammar.schema.formulas import (
    FALSE,
    TRUE,
    Conditional,
    Every,
    ExactlyOne,
    Formula,
    Leaf,
    Some,
    complement,
    count_pairs,
    every,
    pointer_of,
)
from dlm.grammar.schema.keywords import Keywords, whole
from dlm.grammar.schema.languages import most_characters
from dlm.grammar.schema.negations import NegatedKeywords
from dlm.grammar.schema.overlaps import OverlapError

T = TypeVar("T")
MOST_TRIED = 64  # listed values of an alternative that are checked one by one
_UNEVALUATED = {"object": "unevaluatedProperties", "array": "unevaluatedItems"}
_MOST_SHAPES = 256  # of one condition
_MOST_COMBINED = 5  # schemas of one `anyOf` that are combined in all ways
_COMPARED = 8  # pairs of pieces of extents that are compared in one step
_DEEPEST_LOOK = 6  # nested conditions whose satisfiability is examined


class NormalForm:
    """Alternatives of conditions, computed once each.

    `closed`: objects have only the properties that the schema names, unless it allows others.
    """

    def __init__(self, keywords: Keywords, closed: bool):
        self.languages, self.work = keywords.languages, keywords.languages.work
        self.inexact: dict[str, str] = {}
        self._keywords, self._closed = keywords, closed
        self._negated = NegatedKeywords(keywords)
        self._shapes: dict[tuple[Formula, str, bool], Shapes] = {}
        self._reading: set[tuple[Formula, str, bool]] = set()
        self._possible: dict[Formula, bool] = {TRUE: True, FALSE: False}
        self._extents: dict[Formula, Extent] = {}
        self._deep = 0
        self._sets: dict[int, tuple[tuple[Constant, ...], frozenset[Constant]]] = {}

    def shapes(self, formula: Formula, kind: str, annotate: bool = False) -> Shapes:
        """Return the alternatives of `formula` for values of the type `kind`.

        If `annotate`, they record which items or properties are evaluated.
        """
        key = formula, kind, annotate and kind in _UNEVALUATED
        shapes = self._shapes.get(key)
        return self._new_shapes(key) if shapes is None else shapes

    def _new_shapes(self, key: tuple[Formula, str, bool]) -> Shapes:
        if key in self._reading:
            reason = "it refers to itself, for the same value"
            raise InvalidGrammarError("JSON schema", reason, pointer_of(key[0]) or "/")
        self.work.count(1, "")
        formula, kind, annotate = key
        if kind not in self._keywords.kinds(formula):
            return self._shapes.setdefault(key, ())
        self._reading.add(key)
        try:
            shapes = self._shapes[key] = merged(self._read(formula, kind, annotate))
        finally:
            self._reading.discard(key)
        return shapes

    def narrowed(self, formula: Formula, kind: str) -> Shapes:
        """Return the alternatives for `kind`, without those that only imply other types."""
        shapes = self.shapes(formula, kind)
        return shapes and tuple(s for s in shapes if s.typed or not s.hints or kind in s.hints)

    def _read(self, formula: Formula, kind: str, annotate: bool) -> Sequence[Alternative]:
        match formula:
            case Leaf(_, positive):
                read = self._positive if positive else self._negative
                return read(formula, kind, annotate)
            case Every(parts):
                if not parts:
                    return (whole(kind),)
                pairs = [(part, self.shapes(part, kind, annotate)) for part in parts]
                if kind == "object" and not annotate:
                    pairs = with_choices(pairs)
                combined: Sequence[Alternative] = pairs[0][1]
                for part, shapes in pairs[1:]:
                    combined = self._both(combined, shapes, part)
                return combined
            case Some(parts):
                return self._some(parts, kind, annotate)
            case Conditional(test, then, otherwise):
                branches = every(test, then), every(complement(test), otherwise)
                return [s for branch in branches for s in self.shapes(branch, kind, annotate)]
            case ExactlyOne(parts):
                return self._exactly_one(parts, kind, annotate)
        raise TypeError(formula)

    def _positive(self, leaf: Leaf, kind: str, annotate: bool) -> Sequence[Alternative]:
        source = leaf.source
        word, unevaluated = _UNEVALUATED.get(kind), None
        if word in source.node:
            unevaluated = self._keywords.formula(source.node[word], source)
        noted = annotate or (unevaluated is not None and unevaluated is not TRUE)
        own = self._keywords.own(source, kind, noted)
        if own is None:
            return ()
        schemas = self._keywords.combined(source, kind, noted)
        if schemas is TRUE:
            self.work.count(1 + weight_of(own), source.where)
            alternatives = (own,)
        else:
            combined = self.shapes(schemas, kind, noted)
            alternatives = self._both((own,), combined, leaf)
            if kind == "object" and not self._closed:
                alternatives = last_named(own, combined, alternatives)
        if unevaluated is None:
            return alternatives
        return [
            shape._replace(facets=with_evaluated(shape.facets, unevaluated))
            for shape in alternatives
        ]

    def _negative(self, leaf: Leaf, kind: str, annotate: bool) -> Sequence[Alternative]:
        source, alternatives = leaf.source, []
        combined = self._keywords.combined(source, kind)
        self.work.count(count_pairs(combined) // 2, source.where)
        for part in (complement(combined), *self._negated.of(source, kind)):
            alternatives += [part] if isinstance(part, Alternative) else self.shapes(part, kind)
        word = _UNEVALUATED.get(kind)
        if word in source.node and source.node[word] is not True:
            self.inexact[f"{source.where}/{word}"] = "its opposite cannot be enforced"
            return (whole(kind),)
        return alternatives

    def _some(self, parts: tuple[Formula, ...], kind: str, annotate: bool) -> Sequence[Alternative]:
        alternatives = [shape for part in parts for shape in self.shapes(part, kind, annotate)]
        if annotate and 1 < len(parts) <= _MOST_COMBINED:
            for number in range(2, len(parts) + 1):
                for group in combinations(parts, number):
                    alternatives += self.shapes(every(*group), kind, True)
        return alternatives

    def _exactly_one(
        self, parts: tuple[Formula, ...], kind: str, annotate: bool
    ) -> Sequence[Alternative]:
        shapes_of = {part: self.shapes(part, kind, annotate) for part in dict.fromkeys(parts)}
        fitting = [part for part in parts if shapes_of[part]]
        if len(fitting) <= 1 or self._exclusive([shapes_of[part] for part in fitting]):
            return [shape for part in fitting for shape in shapes_of[part]]
        branches = [
            ComparedBranch(shapes_of[part], kind, self._property_extent) for part in fitting
        ]
        comparison = Comparison()
        closed = self._closed and kind == "object"
        alternatives: list[Alternative] = []
        for i, part in enumerate(fitting):
            shapes: Sequence[Alternative] = shapes_of[part]
            foreign: dict[str, None] = {}  # properties without which the others do not fit
            for j, other in enumerate(fitting):
                if i == j or branches[i].apart(branches[j], comparison):
                    continue
                if closed and (name := branches[i].foreign(branches[j])) is not None:
                    foreign[name] = None
                elif not self._apart(shapes, shapes_of[other]):
                    try:
                        shapes = self._without(shapes, other, kind)
                    except TooMuchWorkError as error:
                        raise OverlapError.of(part, other, error) from error
            self.work.count(1 + comparison.pairs // _COMPARED, "")
            comparison.pairs = 0
            if foreign:
                without = Objects((Clause(tuple((name, FALSE) for name in foreign)),))
                shapes = self._both(shapes, (Alternative(without),), part)
            alternatives += shapes
        return alternatives

    def _property_extent(self, objects: Objects, name: str) -> Extent:
        """Return the extent of the values of a required property."""
        formula = self.value_of(objects, name)
        if formula not in self._extents:
            self._extents[formula] = dict.fromkeys(KINDS, (Piece(),))
            if self._deep < _DEEPEST_LOOK:
                self._extents[formula] = self._looking(lambda: self._extent(formula))
        return self._extents[formula]

    def _extent(self, formula: Formula) -> Extent:
        read = {kind: self.shapes(formula, kind) for kind in self._keywords.kinds(formula)}
        return {k: extent_of(shapes, self._property_extent) for k, shapes in read.items() if shapes}

    def _without(
        self, shapes: Sequence[Alternative], other: Formula, kind: str
    ) -> Sequence[Alternative]:
        """Return `shapes` restricted to values that do not fit `other`."""
        refused = self.shapes(complement(other), kind)
        if kind != "object" or not self._closed:
            return self._both(shapes, refused, other)
        alternatives: list[Alternative] = []
        for shape in shapes:
            # A closed object never has properties that only other schemas name.
            named = closed_names(shape)
            apart = tuple(r for r in refused if named is None or required_names(r) <= named)
            alternatives += self._both((shape,), apart or refused, other)
        return alternatives

    def _exclusive(self, branches: list[Shapes]) -> bool:
        """Whether listed values, or those of one required property, show that no two overlap."""
        if all(shape.values is not None for shapes in branches for shape in shapes):
            return disjoint([{v for s in shapes for v in s.values or ()} for shapes in branches])
        every_shape = [shape for shapes in branches for shape in shapes]
        if not all(isinstance(shape.facets, Objects) for shape in every_shape):
            return False
        names = set(every_shape[0].facets.required)  # pyright: ignore
        for shape in every_shape:
            names &= set(shape.facets.required)  # pyright: ignore
        for name in sorted(names):
            values = [[self._tag(shape, name) for shape in shapes] for shapes in branches]
            if all(None not in row for row in values) and disjoint(
                [{value for tags in row for value in tags or ()} for row in values]
            ):
                return True
        return False

    def _tag(self, shape: Alternative, name: str) -> frozenset[Constant] | None:
        """Return the values that the property `name` may have; None if they are not listed."""
        if not isinstance(shape.facets, Objects):
            return None
        lists = [self.listed(self.property_of(clause, name)) for clause in shape.facets.clauses]
        listed = [values for values in lists if values is not None]
        return frozenset.intersection(*listed) if listed else None

    def listed(self, formula: Formula) -> frozenset[Constant] | None:
        """Return all values that may fit `formula`; None if they are not listed."""
        if formula is TRUE or self._deep >= _DEEPEST_LOOK:
            return None
        shapes = self._looking(lambda: [*self._of_any_kind(formula)])
        if any(shape.values is None for shape in shapes):
            return None
        return frozenset(value for shape in shapes for value in shape.values or ())

    def _of_any_kind(self, formula: Formula) -> Iterator[Alternative]:
        """Yield the alternatives of `formula` for values of all types."""
        return (s for kind in self._keywords.kinds(formula) for s in self.shapes(formula, kind))

    def _looking(self, look: Callable[[], T]) -> T:
        """Return what `look` finds out of a part's conditions while those of the whole are read."""
        reading, self._reading = self._reading, set()
        self._deep += 1
        try:
            return look()
        finally:
            self._reading = reading
            self._deep -= 1

    def _apart(self, ones: Sequence[Alternative], others: Sequence[Alternative]) -> bool:
        """Whether no value fits both one of `ones` and one of `others`."""
        for shape in ones:
            for other in others:
                self.work.count(1 + weight_of(shape) + weight_of(other), "")
                if self.fits_some(shape.both(other)):
                    return False
        return True

    def _both(
        self, ones: Sequence[Alternative], others: Sequence[Alternative], why: Formula
    ) -> Sequence[Alternative]:
        """Return the combinations of one of `ones` with one of `others`.

        If they are too many, return `ones` and record the pointer of `why` in `inexact`.
        """
        if len(ones) * len(others) > _MOST_SHAPES * 4:
            self.inexact[pointer_of(why)] = f"it makes more than {_MOST_SHAPES} alternatives"
            return ones
        weight = max(map(weight_of, ones), default=0) + max(map(weight_of, others), default=0)
        self.work.count(len(ones) * len(others) * (1 + weight), pointer_of(why))
        alternatives = [shape.both(other) for shape in ones for other in others]
        if len(alternatives) > 1:
            alternatives = [shape for shape in dict.fromkeys(alternatives) if self.fits_some(shape)]
        if len(alternatives) > _MOST_SHAPES:
            self.inexact[pointer_of(why)] = f"it makes more than {_MOST_SHAPES} alternatives"
            return ones
        return alternatives

    def possible(self, formula: Formula) -> bool:
        """Whether a value may fit `formula`; if False, none does."""
        verdict = self._possible.get(formula)
        if verdict is not None:
            return verdict
        if self._deep >= _DEEPEST_LOOK:
            return True
        self._possible[formula] = True  # assumed while it is examined
        verdict = self._looking(lambda: any(map(self.fits_some, self._of_any_kind(formula))))
        self._possible[formula] = verdict
        return verdict

    def fits_some(self, shape: Alternative) -> bool:
        """Whether a value may fit `shape`; if False, none does."""
        facets = shape.facets
        if shape.values is not None:
            if len(shape.values) > MOST_TRIED or self._deep >= _DEEPEST_LOOK:
                return True
            values = shape.values
            return self._looking(lambda: any(self.admits_facets(facets, value) for value in values))
        try:
            if isinstance(facets, Strings):
                return facets is EMPTY["string"] or self.languages.possible(facets)
            if isinstance(facets, Numbers):
                return facets == EMPTY["number"] or any_of_length(
                    self.languages.numbers(facets), 0, most_characters(facets)
                )
        except TooLargeError:
            return True
        if isinstance(facets, Arrays):
            if facets.high is not None and facets.high < facets.low:
                return False
            firsts = range(min(facets.low, len(facets.prefix) + 1))
            return all(self.possible(facets.item(i)) for i in firsts)
        if isinstance(facets, Objects):
            if facets.high is not None and facets.high < max(facets.low, len(facets.required)):
                return False
            return all(self.possible(self.value_of(facets, name)) for name in facets.required)
        return True  # `choices` may still contradict each other

    def property_of(self, clause: Clause, name: str) -> Formula:
        """Return the condition that `clause` puts on the value of the property `name`.

        If regex engines disagree whether a pattern matches the name, both cases have to hold.
        """
        if not clause.patterns:
            return clause.by_name.get(name, clause.rest)
        parts, doubtful = [clause.by_name[name]] if name in clause.by_name else [], []
        for pattern, value in clause.patterns:
            if self.languages.of("pattern", pattern).accepts(name):
                parts.append(value)
            elif not self.languages.of("pattern", pattern, False).accepts(name):
                doubtful.append(value)
        return every(*(parts or (clause.rest,)), *doubtful)

    def value_of(self, objects: Objects, name: str) -> Formula:
        """Return the condition on the property `name`; FALSE if the property is not allowed."""
        if objects.names and not all(self.admits(key, constant(name)) for key in objects.names):
            return FALSE
        if len(objects.clauses) == 1:
            return self.property_of(objects.clauses[0], name)
        return every(*[self.property_of(clause, name) for clause in objects.clauses])

    def admits(self, formula: Formula, value: Constant) -> bool:
        """Whether `value` fits `formula`."""
        return formula is TRUE or any(
            self.admits_shape(shape, value) for shape in self.shapes(formula, value.kind)
        )

    def admits_shape(self, shape: Alternative, value: Constant) -> bool:
        """Whether `value` fits `shape`."""
        listed = shape.values is None or value in self._set(shape.values)
        return listed and self.admits_facets(shape.facets, value)

    def _set(self, values: tuple[Constant, ...]) -> Collection[Constant]:
        if len(values) <= MOST_TRIED:
            return values
        if id(values) not in self._sets:
            self._sets[id(values)] = values, frozenset(values)  # kept alive: its id() stays unique
        return self._sets[id(values)][1]

    def admits_facets(self, facets: Facets | None, value: Constant) -> bool:
        """Whether `value`, of the type of `facets`, fits them."""
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
        repeated = len(set(items)) < len(items)
        if len(items) < arrays.low or (arrays.high is not None and len(items) > arrays.high):
            return False
        if (arrays.unique and repeated) or (arrays.repeats and not repeated):
            return False
        for contains in arrays.contains:
            number = sum(self.admits(contains.item, item) for item in items[contains.start :])
            if number < contains.low or (contains.high is not None and number > contains.high):
                return False
        return all(self.admits(arrays.item(i), item) for i, item in enumerate(items))

    def _admits_object(self, objects: Objects, parts: dict[str, Constant]) -> bool:
        if len(parts) < objects.low or (objects.high is not None and len(parts) > objects.high):
            return False
        return (
            all(name in parts for name in objects.required)
            and all(self.admits(self.value_of(objects, n), part) for n, part in parts.items())
            and all(
                any(
                    (self.admits(k, constant(n)) if isinstance(k, Formula) else k.accepts(n))
                    and self.admits(value, part)
                    for n, part in parts.items()
                )
                for k, value in objects.some
            )
            and all(
                any(self._admits_object(alternative, parts) for alternative in choice)
                for choice in objects.choices
            )
        )
