"""Contradictions in a schema that no value fits: where it is, and which keywords cannot be met.

Knows the alternatives of a condition, but neither grammars nor the text of a schema.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from itertools import chain

from dlm.grammar.regex.automaton import TooLargeError
from dlm.grammar.schema.conditions import (
    KINDS,
    Alternative,
    Arrays,
    Bound,
    Numbers,
    Objects,
    Shapes,
    Strings,
)
from dlm.grammar.schema.conflicts import Conflicts
from dlm.grammar.schema.constants import constant
from dlm.grammar.schema.formulas import (
    FALSE,
    Conditional,
    Every,
    ExactlyOne,
    Formula,
    Leaf,
    Some,
    every,
    pointer_of,
)
from dlm.grammar.schema.keywords import Keywords
from dlm.grammar.schema.normal import NormalForm

_MOST_REASONS = 3  # that one error lists
_NOT_ASSERTING = frozenset(
    "$schema $id title description default examples $defs definitions".split()
)


def contradiction(
    formula: Formula,
    normal: NormalForm,
    keywords: Keywords,
    shapes: Callable[[Formula, str], Shapes],
) -> tuple[str, str]:
    """Return the JSON pointer of an innermost required part of `formula` that no value fits, and
    the reason; it may be empty.

    `shapes` returns the alternatives of a condition for values of a type.
    """
    return _Search(normal, Conflicts(normal, keywords), shapes).innermost(formula)


class _Search:
    """Search for the innermost of the conditions that a value has to fit, and that none does."""

    def __init__(
        self,
        normal: NormalForm,
        conflicts: Conflicts,
        shapes: Callable[[Formula, str], Shapes],
    ):
        self._normal, self._conflicts, self._shapes = normal, conflicts, shapes
        self._possible: dict[Formula, bool] = {}

    def innermost(self, formula: Formula) -> tuple[str, str]:
        """Return the JSON pointer of that condition and the reason."""
        seen: set[Formula] = set()
        while formula not in seen:
            seen.add(formula)
            inner = (part for part in self._required(formula) if not self._may_fit(part))
            same = (
                part
                for part in self._conflicts.parts(formula)
                if isinstance(part, Leaf) and part.positive and not self._normal.possible(part)
            )
            others = (part for part in chain(inner, same) if part not in (FALSE, *seen))
            formula = next(others, formula)
        return pointer_of(formula), self._reason(formula)

    def _alternatives(self, formula: Formula) -> list[Alternative]:
        return [shape for kind in KINDS for shape in self._shapes(formula, kind)]

    def _may_fit(self, formula: Formula) -> bool:
        """Whether some value may fit `formula`."""
        if formula not in self._possible:
            self._possible[formula] = True  # assumed while it is examined
            self._possible[formula] = any(
                self._normal.fits_some(shape) and all(map(self._may_fit, self._parts(shape)))
                for shape in self._alternatives(formula)
            )
        return self._possible[formula]

    def _parts(self, shape: Alternative) -> Iterator[Formula]:
        """Yield the conditions on required properties and on required items up to the first free
        one."""
        match shape.facets:
            case Objects() as objects:
                yield from (self._normal.value_of(objects, name) for name in objects.required)
            case Arrays(prefix, low=low) as arrays:
                yield from (arrays.item(i) for i in range(min(low, len(prefix) + 1)))

    def _required(self, formula: Formula) -> list[Formula]:
        return [part for shape in self._alternatives(formula) for part in self._parts(shape)]

    def _reason(self, formula: Formula) -> str:
        """Return why no value fits `formula`; empty if that is unknown."""
        if formula is FALSE:
            return "the schema is false"
        if reason := self._conflicts.of_lists(formula) or self._conflicts.of_one_of(formula):
            return reason
        alternatives = self._alternatives(formula)
        reasons = dict.fromkeys(
            reason for shape in alternatives if (reason := _of_shape(shape, formula, self._normal))
        )
        if reasons:
            return "; or ".join(list(reasons)[:_MOST_REASONS])
        if any(map(self._normal.fits_some, alternatives)):
            return self._endless(formula)
        of_shape = partial(_of_shape, formula=formula, normal=self._normal)
        return self._conflicts.of_pairs(formula, of_shape) or _of_words(formula)

    def _endless(self, formula: Formula) -> str:
        """Return that some value needs another one of its own schema within it, if it does."""
        needs: dict[Formula, set[Formula]] = {}
        waiting = [formula]
        while waiting:
            part = waiting.pop()
            if part not in needs:
                needs[part] = set(self._required(part))
                waiting += needs[part]
        while True:  # only those that need each other stay
            needed = set[Formula]().union(*needs.values())
            kept = {p: inner for p, inner in needs.items() if p in needed and inner & needs.keys()}
            if len(kept) == len(needs):
                break
            needs = {part: inner & kept.keys() for part, inner in kept.items()}
        if not needs:
            return ""
        where = min(pointer_of(part) or "/" for part in needs)
        return f"each value of the schema at {where} has to contain another one, without end"


def _of_shape(shape: Alternative, formula: Formula, normal: NormalForm) -> str:
    if shape.values == ():
        return ""  # of several lists
    if shape.values is not None:
        parts = formula.parts if isinstance(formula, Every) else (formula,)
        words = {word for part in parts for word in _words(part)} - {"enum", "const"}
        return f"no value of enum or const fits {_listed(words) if words else 'the other keywords'}"
    match shape.facets:
        case Numbers():
            return _of_numbers(shape.facets)
        case Strings():
            return _of_strings(shape.facets)
        case Arrays():
            return _of_arrays(shape.facets, normal)
        case Objects():
            return _of_objects(shape.facets, formula, normal)
    return ""


def _of_numbers(numbers: Numbers) -> str:
    low, high = numbers.low, numbers.high
    if low and high and (low[0] > high[0] or (low[0] == high[0] and not (low[1] and high[1]))):
        lower, upper = _bound(low, "minimum"), _bound(high, "maximum")
        return f"{lower} is {'above' if low[0] > high[0] else 'no lower than'} {upper}"
    kind = "integer" if numbers.integer else "number"
    if numbers.multiples:
        kind = f"multiple of {' and '.join(map(_number, sorted(numbers.multiples)))}"
    bounds = [_bound(low, "minimum")] if low else []
    bounds += [_bound(high, "maximum")] if high else []
    return f"no {kind} is within {' and '.join(bounds)}" if bounds else f"no {kind} is left"


def _bound(bound: Bound, word: str) -> str:
    name = word if bound[1] else f"exclusive{word.capitalize()}"
    return f"{name} {_number(bound[0])}"


def _number(value: Fraction | int) -> str:
    return str(value) if value == int(value) else f"{float(value):g}"


def _of_strings(strings: Strings) -> str:
    if strings.high is not None and strings.low > strings.high:
        return f"minLength {strings.low} is above maxLength {strings.high}"
    matched = [
        f"{word} {text!r:.60}" if positive else f"not {word} {text!r:.60}"
        for word, text, positive in sorted(strings.languages)
    ]
    if strings.low or strings.high is not None:
        most = "" if strings.high is None else f" to {strings.high}"
        matched.append(f"{strings.low}{most or ' or more'} characters")
    return f"no string fits all of {_listed(matched)}"


def _of_arrays(arrays: Arrays, normal: NormalForm) -> str:
    if arrays.high is not None and arrays.low > arrays.high:
        return f"minItems {arrays.low} is above maxItems {arrays.high}"
    for i in range(min(arrays.low, len(arrays.prefix) + 1)):
        if not normal.possible(arrays.item(i)):
            return f"minItems is {arrays.low}, and no value may be item {i}"
    for contains in arrays.contains:
        low, high = contains.low, contains.high
        if high is not None and low > high:
            return f"minContains {low} is above maxContains {high}"
        items = (*arrays.prefix, arrays.rest)
        if low and not any(normal.possible(every(item, contains.item)) for item in items):
            return "contains needs an item that fits it, and no item may"
    values = normal.listed(arrays.rest)
    if arrays.unique and not arrays.prefix and values is not None and len(values) < arrays.low:
        return f"minItems is {arrays.low}, and uniqueItems leaves at most {len(values)} items"
    return ""


def _of_objects(objects: Objects, formula: Formula, normal: NormalForm) -> str:
    high = objects.high
    if high is not None and objects.low > high:
        return f"minProperties {objects.low} is above maxProperties {high}"
    for name in objects.required:
        if not normal.possible(normal.value_of(objects, name)):
            needs = _needs(formula, name) if name in objects.depending else ""
            forbids = _forbids(objects, name, formula, normal)
            return f"{name!r:.80} is required{needs}, and {forbids}"
    if high is not None and len(objects.required) > high:
        return f"{len(objects.required)} properties are required, and maxProperties is {high}"
    closed = any(clause.rest is FALSE and not clause.patterns for clause in objects.clauses)
    names = [n for n in objects.all_names() if normal.possible(normal.value_of(objects, n))]
    if closed and len(names) < objects.low:
        return f"minProperties is {objects.low}, and at most {len(names)} properties are allowed"
    return ""


def _needs(formula: Formula, name: str) -> str:
    """Return which keyword of `formula` requires the property `name` beside others."""
    node = formula.source.node if isinstance(formula, Leaf) else {}
    lists = node.get("dependentRequired", {}).items()
    having = next((other for other, names in lists if name in names), None)
    return "" if having is None else f" by dependentRequired beside {having!r:.80}"


def _forbids(objects: Objects, name: str, formula: Formula, normal: NormalForm) -> str:
    """Return what forbids the property `name`."""
    if not all(normal.admits(key, constant(name)) for key in objects.names):
        return "propertyNames forbids it"
    for clause in objects.clauses:
        value = normal.property_of(clause, name)
        if normal.possible(value):
            continue
        named = dict(clause.properties)
        try:
            matched = any(
                normal.languages.of("pattern", pattern).accepts(name)
                for pattern, _ in clause.patterns
            )
        except TooLargeError:
            matched = False
        if name not in named and not matched:
            words = ("additionalProperties", "unevaluatedProperties")
            word = next((word for word in words if word in _words(formula)), words[0])
            if clause.rest is FALSE:
                return f"{word} forbids it: properties has to name it"
            return f"{word} fits no value"
        if value is not FALSE:
            return "no value fits its schema"
        return f"{'patternProperties' if matched else 'another keyword'} forbids it"
    return "no value fits all schemas of it"


def _of_words(formula: Formula) -> str:
    """Return which keywords contradict each other, as far as that is known."""
    words = _words(formula)
    return f"no value fits {_listed(words)}" if words else ""


def _words(formula: Formula) -> set[str]:
    """Return the keywords of the first subschema of `formula`."""
    match formula:
        case Leaf(source):
            return {word for word in source.node if word not in _NOT_ASSERTING}
        case Every((part, *_)) | Some((part, *_)) | ExactlyOne((part, *_)):
            return _words(part)
        case Conditional(test):
            return _words(test)
    return set()


def _listed(words: set[str] | list[str]) -> str:
    """Return `words` as an enumeration in a sentence."""
    *others, last = sorted(words) if isinstance(words, set) else words or ["it"]
    return f"{', '.join(others)} and {last}" if others else last
