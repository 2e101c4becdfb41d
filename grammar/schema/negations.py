"""Negations of the keywords of one subschema: facets of the values that they refuse.

Knows neither how alternatives are combined nor grammars.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.schema.conditions import (
    Alternative,
    Arrays,
    Clause,
    Contains,
    Numbers,
    Objects,
    Strings,
)
from dlm.grammar.schema.constants import Constant, exact
from dlm.grammar.schema.documents import Source
from dlm.grammar.schema.formulas import FALSE, TRUE, Formula, complement, every
from dlm.grammar.schema.keywords import Keywords, bounds, whole


class NegatedKeywords:
    """Reader of the negations of `keywords`."""

    def __init__(self, keywords: Keywords):
        self._keywords = keywords
        self._structures: dict[Constant, Formula] = {}

    def of(self, source: Source, kind: str) -> Iterator[Formula | Alternative]:
        """Yield alternatives of the negated keywords of `source`, without those of `combined`."""
        if (named := source.node.get("type")) is not None and kind not in named:
            if kind == "number" and "integer" in named:
                yield Alternative(Numbers(not_multiples=frozenset((Fraction(1),))))
            else:
                yield whole(kind)
        for listed in self._keywords.listed(source):
            if without := self._without(listed, kind, source):
                yield without
        if kind == "string":
            yield from self._not_strings(source)
        elif kind == "number":
            yield from _not_numbers(source)
        elif kind == "array":
            yield from self._not_arrays(source)
        elif kind == "object":
            yield from self._not_objects(source)

    def _without(
        self, values: tuple[Constant, ...], kind: str, source: Source
    ) -> Formula | Alternative | None:
        mine = {value for value in values if value.kind == kind}
        if (all_of_them := whole(kind).values) is not None:
            others = tuple(value for value in all_of_them if value not in mine)
            return Alternative(None, others) if others else None
        if kind == "string":
            return Alternative(Strings(excluded=frozenset(value.value for value in mine)))
        if kind == "number":
            return Alternative(Numbers(excluded=frozenset(exact(value.value) for value in mine)))
        if not mine:
            return whole(kind)
        return every(*(complement(self._structure(value, source)) for value in mine))

    def _structure(self, value: Constant, source: Source) -> Formula:
        """Return the condition that a value equals `value`, an array or an object."""
        if value not in self._structures:
            self._structures[value] = self._keywords.formula(_schema_of(value.value), source)
        return self._structures[value]

    def _not_strings(self, source: Source) -> Iterator[Alternative]:
        node = source.node
        yield from _uncounted(Strings, node.get("minLength"), node.get("maxLength"))
        for word in ("pattern", "format"):
            if word not in node:
                continue
            if self._keywords.languages.asserts(word, source, positive=False):
                yield Alternative(Strings(languages=frozenset(((word, node[word], False),))))
            elif word == "pattern":
                yield whole("string")  # the pattern may refuse any text

    def _not_arrays(self, source: Source) -> Iterator[Alternative]:
        node = source.node
        prefix, further = self._keywords.items(source)
        for i, item in enumerate(prefix):
            if item is not TRUE:
                yield Alternative(Arrays((TRUE,) * i + (complement(item),), low=i + 1))
        if further is not None and further is not TRUE:
            at_least = (Contains(complement(further), 1, None, len(prefix)),)
            yield Alternative(Arrays(low=len(prefix) + 1, contains=at_least))
        yield from _uncounted(Arrays, node.get("minItems"), node.get("maxItems"))
        if "contains" in node:
            item = self._keywords.formula(node["contains"], source)
            low, high = node.get("minContains", 1), node.get("maxContains")
            if low:
                yield Alternative(Arrays(contains=(Contains(item, 0, low - 1),)))
            if high is not None:
                yield Alternative(Arrays(low=high + 1, contains=(Contains(item, high + 1),)))
        if node.get("uniqueItems"):
            yield Alternative(Arrays(low=2, repeats=True))

    def _not_objects(self, source: Source) -> Iterator[Alternative]:
        node = source.node
        named = node.get("properties", {})
        patterns = self._keywords.key_patterns(source)
        if len(patterns) < len(node.get("patternProperties", ())):
            yield whole("object")  # any object may have a key that matches an unread pattern
        for name in node.get("required", ()):
            yield Alternative(Objects((Clause(((name, FALSE),)),)))
        for name, part in named.items():
            if (value := self._keywords.formula(part, source)) is not TRUE:
                clause = Clause(((name, complement(value)),))
                needed = {"required": (name,), "depending": frozenset((name,))}
                yield Alternative(Objects((clause,), **needed))
        for pattern, part in patterns.items():
            if (value := self._keywords.formula(part, source)) is not TRUE:
                keys = self._keywords.languages.of("pattern", pattern, True)
                yield Alternative(Objects(low=1, some=((keys, complement(value)),)))
        additional = self._keywords.formula(node.get("additionalProperties", True), source)
        if additional is not TRUE:
            keys = Automaton.other_words(named)
            for pattern in patterns:
                keys = keys.intersection(self._keywords.languages.of("pattern", pattern, False))
            yield Alternative(Objects(low=1, some=((keys, complement(additional)),)))
        if "propertyNames" in node:
            names = self._keywords.formula(node["propertyNames"], source)
            if names is not TRUE:
                yield Alternative(Objects(low=1, some=((complement(names), TRUE),)))
        yield from _uncounted(Objects, node.get("minProperties"), node.get("maxProperties"))


def _schema_of(value: Any) -> dict[str, Any]:
    """Return a schema that only `value`, an array or an object, fits."""
    if isinstance(value, list):
        parts = {"prefixItems": [{"const": item} for item in value]} if value else {}
        return {"type": "array", "minItems": len(value), "maxItems": len(value), **parts}
    properties = {name: {"const": part} for name, part in value.items()}
    required = {"required": list(value), "properties": properties, "maxProperties": len(value)}
    return {"type": "object", **required}


def _uncounted(
    facets: type[Strings | Arrays | Objects], low: int | None, high: int | None
) -> Iterator[Alternative]:
    """Yield alternatives of values with fewer parts than `low`, or more than `high`."""
    if low:
        yield Alternative(facets(high=low - 1))
    if high is not None:
        yield Alternative(facets(low=high + 1))


def _not_numbers(source: Source) -> Iterator[Alternative]:
    for end, (value, allowed) in bounds(source.node):
        bound = (value, not allowed)
        yield Alternative(Numbers(high=bound) if end == "minimum" else Numbers(low=bound))
    if "multipleOf" in source.node:
        step = Fraction(exact(source.node["multipleOf"]))
        yield Alternative(Numbers(not_multiples=frozenset((step,))))
