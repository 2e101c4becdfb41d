"""Facets: the constraints that one alternative of a schema puts on values of one type.

`both` combines the constraints of two alternatives, without finding out whether any value fits.
The module knows no keyword.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field
from fractions import Fraction
from itertools import zip_longest
from math import prod
from typing import NamedTuple, TypeVar

from dlm.grammar.immutable import immutable
from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.schema.constants import Constant
from dlm.grammar.schema.formulas import FALSE, TRUE, Formula, every, some

T = TypeVar("T")
Bound = tuple[Fraction | int, bool]  # a limit, and whether the limit itself is allowed


class Strings(NamedTuple):
    """Constraints on strings; `low` and `high` limit the number of characters."""

    low: int = 0
    high: int | None = None
    languages: frozenset[tuple[str, str, bool]] = frozenset()  # keyword, its text, whether to fit
    excluded: frozenset[str] = frozenset()

    def both(self, other: "Strings") -> "Strings":
        return Strings(
            max(self.low, other.low),
            lesser(self.high, other.high),
            self.languages | other.languages,
            self.excluded | other.excluded,
        )


class Numbers(NamedTuple):
    """Constraints on numbers."""

    low: Bound | None = None
    high: Bound | None = None
    integer: bool = False
    multiples: frozenset[Fraction] = frozenset()
    not_multiples: frozenset[Fraction] = frozenset()
    excluded: frozenset[Fraction | int] = frozenset()

    def both(self, other: "Numbers") -> "Numbers":
        lows = [bound for bound in (self.low, other.low) if bound]
        highs = [bound for bound in (self.high, other.high) if bound]
        return Numbers(
            max(lows, key=lambda bound: (bound[0], not bound[1]), default=None),
            min(highs, default=None),
            self.integer or other.integer,
            self.multiples | other.multiples,
            self.not_multiples | other.not_multiples,
            self.excluded | other.excluded,
        )

    def admits(self, number: Fraction | int) -> bool:
        return self.admissible(number) and number not in self.excluded

    def admissible(self, number: Fraction | int) -> bool:
        """Whether `number` fits all constraints except `excluded`."""
        return (
            (self.low is None or number > self.low[0] or self.low == (number, True))
            and (self.high is None or number < self.high[0] or self.high == (number, True))
            and (not self.integer or number % 1 == 0)
            and all(number % step == 0 for step in self.multiples)
            and all(number % step != 0 for step in self.not_multiples)
        )


class Contains(NamedTuple):
    """Constraint that `low` to `high` items, from the index `start` on, fit `item`."""

    item: Formula
    low: int
    high: int | None = None
    start: int = 0


class Arrays(NamedTuple):
    """Constraints on arrays: first items, the `rest`, and `low` to `high` items in all."""

    prefix: tuple[Formula, ...] = ()
    rest: Formula = TRUE
    low: int = 0
    high: int | None = None
    contains: tuple[Contains, ...] = ()
    unique: bool = False
    repeats: bool = False  # at least two items are equal
    evaluated: int | None = 0  # how many of the first items are evaluated; all if None
    matched: tuple[Formula, ...] = ()  # items that fit one of these are evaluated too

    def both(self, other: "Arrays") -> "Arrays":
        pairs = zip_longest(
            (*self.prefix, *[self.rest] * (len(other.prefix) - len(self.prefix))),
            (*other.prefix, *[other.rest] * (len(self.prefix) - len(other.prefix))),
        )
        seen = (self.evaluated, other.evaluated)
        return Arrays(
            tuple(every(mine, another) for mine, another in pairs),
            every(self.rest, other.rest),
            max(self.low, other.low),
            lesser(self.high, other.high),
            tuple(dict.fromkeys(self.contains + other.contains)),
            self.unique or other.unique,
            self.repeats or other.repeats,
            None if None in seen else max(self.evaluated or 0, other.evaluated or 0),
            tuple(dict.fromkeys(self.matched + other.matched)),
        )

    def item(self, index: int) -> Formula:
        return self.prefix[index] if index < len(self.prefix) else self.rest


@immutable()
class Clause:
    """Schemas of properties: by name, by pattern of the name, and `rest` for all others."""

    properties: tuple[tuple[str, Formula], ...] = ()
    patterns: tuple[tuple[str, Formula], ...] = ()
    rest: Formula = TRUE
    # The schema of each named property. Made at once: caches measure a clause when they get it.
    by_name: dict[str, Formula] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        schemas = dict(self.properties)
        if len(schemas) < len(self.properties):
            for name in schemas:
                schemas[name] = every(*(schema for n, schema in self.properties if n == name))
        object.__setattr__(self, "by_name", schemas)


class Objects(NamedTuple):
    """Constraints on objects; `low` and `high` limit the number of properties."""

    clauses: tuple[Clause, ...] = ()
    names: tuple[Formula, ...] = ()  # every key, as a string, fits all of these
    required: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    some: tuple[tuple[Automaton | Formula, Formula], ...] = ()  # a property fits key and value
    opened: bool = False  # the schema explicitly allows properties that it does not name
    named: bool = False  # the schema has `properties`, which may be empty or impossible
    # Evaluated properties: names, patterns, and whether all are.
    evaluated: tuple[frozenset[str], frozenset[str], bool] = (frozenset(), frozenset(), False)
    order: tuple[str, ...] = ()  # property names, those of `allOf` and `$ref` first; () if unset
    # Conditions of which each is a choice: the object fits one of the alternatives, which are about
    # named properties alone. Multiplied out, n of them would make 2**n alternatives.
    choices: "tuple[tuple[Objects, ...], ...]" = ()
    depending: frozenset[str] = frozenset()  # properties that only others, or values, require

    def both(self, other: "Objects") -> "Objects":
        mine, its = self.evaluated, other.evaluated
        names: Iterable[str] = ()
        if self.order or other.order:
            names = (*(self.order or self.all_names()), *(other.order or other.all_names()))
        depending = self.depending or other.depending
        if depending:
            depending = {*self.required, *other.required} - self.in_order() - other.in_order()
        return Objects(
            _joined(self.clauses, other.clauses),
            _united(self.names, other.names),
            _united(self.required, other.required),
            max(self.low, other.low),
            lesser(self.high, other.high),
            _united(self.some, other.some),
            self.opened or other.opened,
            self.named or other.named,
            mine if mine == its else (mine[0] | its[0], mine[1] | its[1], mine[2] or its[2]),
            tuple(dict.fromkeys(names)),
            _united(self.choices, other.choices),
            frozenset(depending),
        )

    @property
    def is_local(self) -> bool:
        """Whether the constraints are about named properties alone: their presence and values."""
        named = all(not clause.patterns and clause.rest is TRUE for clause in self.clauses)
        local = Objects(
            self.clauses,
            required=self.required,
            named=self.named,
            order=self.order,
            depending=self.depending,
        )
        return named and self == local

    @property
    def closes_names(self) -> bool:
        """Whether properties that nothing names are left out, where objects are closed."""
        return not self.opened and (self.named or bool(self.all_names()))

    def chosen_names(self) -> dict[str, None]:
        """Return the properties that `choices` are about."""
        names = (
            name
            for choice in self.choices
            for alternative in choice
            for name in alternative.all_names()
        )
        return dict.fromkeys(names)

    def in_order(self) -> set[str]:
        """Return the properties that a keyword `required` lists for all values."""
        return {*self.required} - self.depending

    def all_names(self) -> dict[str, None]:
        """Return all named or required properties, in the schema's order."""
        named = [name for clause in self.clauses for name, _ in clause.properties]
        return dict.fromkeys([*named, *self.required])


Facets = Strings | Numbers | Arrays | Objects
EMPTY: dict[str, Facets] = {
    "string": Strings(), "number": Numbers(), "array": Arrays(), "object": Objects()
}  # fmt: skip
KINDS = ("string", "number", "object", "array", "boolean", "null")


class Alternative(NamedTuple):
    """One alternative for values of one type, which fit `facets` and are among `values`."""

    facets: Facets | None  # None for null and boolean, which have `values`
    values: tuple[Constant, ...] | None = None  # None: not listed
    typed: bool = False  # the schema names the type by `type`, `enum` or `const`
    hints: frozenset[str] = frozenset()  # types that the schema's keywords imply

    def both(self, other: "Alternative") -> "Alternative":
        values = self.values if other.values is None else other.values
        if self.values is not None and other.values is not None:
            common = set(other.values)
            values = tuple(value for value in self.values if value in common)
        facets = self.facets
        if facets is not None and facets != other.facets:
            facets = facets.both(other.facets)  # pyright: ignore[reportArgumentType]  # one type
        typed = self.typed or other.typed
        return Alternative(facets, values, typed, self.hints | other.hints)

    def bare(self) -> "Alternative":
        """Return the alternative without `typed` and `hints`."""
        return Alternative(self.facets, self.values)


def _united(ones: tuple[T, ...], others: tuple[T, ...]) -> tuple[T, ...]:
    """Return all elements of two tuples without repetitions; each alone has none."""
    if not ones or not others:
        return ones or others
    return tuple(dict.fromkeys(ones + others))


NO_CLAUSE = Clause()


def _joined(ones: tuple[Clause, ...], others: tuple[Clause, ...]) -> tuple[Clause, ...]:
    """Return all clauses, with those that have only named properties merged into one."""
    if len(ones) + len(others) == 1:
        return tuple(clause for clause in ones + others if clause != NO_CLAUSE)
    together: dict[Clause, None] = {}
    named: dict[str, Formula] = {}
    for clause in ones + others:
        if clause.patterns or clause.rest is not TRUE:
            together[clause] = None
        elif not named:
            named = dict(clause.properties)
        else:
            for name, value in clause.properties:
                named[name] = every(named[name], value) if name in named else value
    plain = (Clause(tuple(named.items())),) if named else ()
    return (*plain, *together)


def lesser(limit: int | None, other: int | None) -> int | None:
    """Return the lesser of two upper limits, where None is no limit."""
    if limit is None or other is None:
        return other if limit is None else limit
    return min(limit, other)


Shapes = tuple[Alternative, ...]


def with_evaluated(facets: Facets | None, unevaluated: Formula) -> Facets | None:
    """Return `facets` with the schema `unevaluated` for all items or properties that no other
    schema has evaluated."""
    if isinstance(facets, Arrays):
        if facets.evaluated is not None:
            prefix = (TRUE,) * facets.evaluated
            facets = facets.both(Arrays(prefix, some(unevaluated, *facets.matched)))
        return facets._replace(evaluated=None)
    if isinstance(facets, Objects):
        names, patterns, everything = facets.evaluated
        if not everything:
            properties = tuple((name, TRUE) for name in sorted(names))
            clause = Clause(properties, tuple((p, TRUE) for p in sorted(patterns)), unevaluated)
            facets = facets._replace(clauses=(*facets.clauses, clause))
        opened = facets.opened or unevaluated is not FALSE
        return facets._replace(evaluated=(names, patterns, True), opened=opened)
    return facets


def closed_names(shape: Alternative) -> set[str] | None:
    """Return the property names of a closed object; None if it may have others."""
    facets = shape.facets
    if not isinstance(facets, Objects) or facets.opened or shape.values is not None:
        return None
    names = {*facets.all_names(), *facets.chosen_names()}
    return names if names or facets.named else None


def last_named(
    own: Alternative, combined: Shapes, shapes: Sequence[Alternative]
) -> Sequence[Alternative]:
    """Return `shapes` with the properties of `own` ordered after those of `combined`."""
    mine = own.facets.all_names() if isinstance(own.facets, Objects) else {}
    others = [
        name
        for shape in combined
        if isinstance(shape.facets, Objects)
        for name in shape.facets.order or shape.facets.all_names()
    ]
    order = tuple(dict.fromkeys((*others, *mine)))
    if not mine or not others or order == tuple(dict.fromkeys((*mine, *others))):
        return shapes
    return [
        shape._replace(facets=shape.facets._replace(order=order))
        if isinstance(shape.facets, Objects)
        else shape
        for shape in shapes
    ]


def required_names(shape: Alternative) -> set[str]:
    return set(shape.facets.required) if isinstance(shape.facets, Objects) else set()


def weight_of(shape: Alternative) -> int:
    facets = shape.facets
    return len(facets.clauses) + len(facets.required) // 4 if isinstance(facets, Objects) else 0


def disjoint(sets: Iterable[set[Constant]]) -> bool:
    seen: set[Constant] = set()
    for values in sets:
        if seen & values:
            return False
        seen |= values
    return True


def merged(shapes: Sequence[Alternative]) -> Shapes:
    """Return `shapes` without repetitions, merging those that differ only in their `values`."""
    if len(shapes) <= 1:  # no alternative repeats values
        return tuple(shapes)
    values_of: dict[Alternative, dict[Constant, None] | None] = {}
    for shape in shapes:
        if shape.values is None:
            values_of[shape] = None
        else:
            alike = shape._replace(values=())
            values = values_of.setdefault(alike, {})
            if values is not None:
                values.update(dict.fromkeys(shape.values))
    return tuple(
        shape if values is None else shape._replace(values=tuple(values))
        for shape, values in values_of.items()
    )


_MOST_MULTIPLIED = 16  # alternatives of several conditions that are combined in all ways


def with_choices(conditions: list[tuple[Formula, Shapes]]) -> list[tuple[Formula, Shapes]]:
    """Return conditions and their alternatives for objects, with few combinations in all.

    Of many conditions, those about named properties alone become choices of one alternative.
    """
    if prod(len(shapes) for _, shapes in conditions) <= _MOST_MULTIPLIED:
        return conditions
    fewer: list[tuple[Formula, Shapes]] = []
    for formula, shapes in conditions:
        facets = [shape.facets for shape in shapes if isinstance(shape.facets, Objects)]
        local = len(facets) == len(shapes) and all(objects.is_local for objects in facets)
        if len(shapes) > 1 and local and all(shape.values is None for shape in shapes):
            hints = frozenset[str]().union(*(shape.hints for shape in shapes))
            typed = all(shape.typed for shape in shapes)
            named = any(objects.named for objects in facets)
            choice = Objects(named=named, choices=(tuple(dict.fromkeys(facets)),))
            shapes = (Alternative(choice, None, typed, hints),)
        fewer.append((formula, shapes))
    return fewer
