"""What is true of the values of one type that a subschema's own keywords refuse.

Knows each keyword's opposite, but not how alternatives are combined.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.schema.constant import Constant, exact
from dlm.grammar.schema.facets import Arrays, Clause, Contains, Numbers, Objects, Shape, Strings
from dlm.grammar.schema.formula import FALSE, TRUE, Formula, complement, every
from dlm.grammar.schema.keywords import Keywords, alone, bounds, contained, types, whole
from dlm.grammar.schema.reader import Source


class Opposites:
    """Reads the keywords that `keywords` reads the other way round."""

    def __init__(self, keywords: Keywords):
        self._keywords = keywords
        self._structures: dict[Constant, Formula] = {}

    def of(self, source: Source, kind: str) -> Iterator[Formula | Shape]:
        """What of all is true of a value that the other keywords refuse."""
        if alone(source):
            return
        if (named := types(source)) is not None and kind not in named:
            if kind == "number" and "integer" in named:
                yield Shape(Numbers(not_multiples=frozenset((Fraction(1),))))
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
    ) -> Formula | Shape | None:
        mine = {value for value in values if value.kind == kind}
        if (all_of_them := whole(kind).values) is not None:
            rest = tuple(value for value in all_of_them if value not in mine)
            return Shape(None, rest) if rest else None
        if kind == "string":
            return Shape(Strings(excluded=frozenset(value.value for value in mine)))
        if kind == "number":
            return Shape(Numbers(excluded=frozenset(exact(value.value) for value in mine)))
        if not mine:
            return whole(kind)
        return every(*(complement(self._structure(value, source)) for value in mine))

    def _structure(self, value: Constant, source: Source) -> Formula:
        """The schema of one array or object."""
        if value not in self._structures:
            self._structures[value] = self._keywords.made_up(_schema_of(value.value), source)
        return self._structures[value]

    def _not_strings(self, source: Source) -> Iterator[Shape]:
        node = source.node
        if low := int(node.get("minLength", 0)):
            yield Shape(Strings(high=low - 1))
        if "maxLength" in node:
            yield Shape(Strings(low=int(node["maxLength"]) + 1))
        for word in ("pattern", "format"):
            if word not in node:
                continue
            if self._keywords.languages.asserts(word, source):
                yield Shape(Strings(languages=frozenset(((word, node[word], False),))))
            elif word == "pattern":
                yield whole("string")  # any text may be one that it refuses

    def _not_arrays(self, source: Source) -> Iterator[Shape]:
        node = source.node
        prefix, rest = self._keywords.items(source)
        for i, item in enumerate(prefix):
            if item != TRUE:
                yield Shape(Arrays((TRUE,) * i + (complement(item),), low=i + 1))
        if rest is not None and rest != TRUE:
            at_least = (Contains(complement(rest), 1, None, len(prefix)),)
            yield Shape(Arrays(low=len(prefix) + 1, contains=at_least))
        if low := int(node.get("minItems", 0)):
            yield Shape(Arrays(high=low - 1))
        if "maxItems" in node:
            yield Shape(Arrays(low=int(node["maxItems"]) + 1))
        if source.knows("contains"):
            item = self._keywords.formula(node["contains"], source)
            low, high = contained(source)
            if low:
                yield Shape(Arrays(contains=(Contains(item, 0, low - 1),)))
            if high is not None:
                yield Shape(Arrays(low=high + 1, contains=(Contains(item, high + 1),)))
        if node.get("uniqueItems"):
            yield Shape(Arrays(low=2, repeats=True))

    def _not_objects(self, source: Source) -> Iterator[Shape]:
        node = source.node
        named = node.get("properties", {})
        patterns = self._keywords.key_patterns(source)
        if len(patterns) < len(node.get("patternProperties", ())):
            yield whole("object")  # any object may have a key that another pattern is for
        for name in node.get("required", ()):
            yield Shape(Objects((Clause(((name, FALSE),)),)))
        for name, part in named.items():
            if (value := self._keywords.formula(part, source)) != TRUE:
                clause = Clause(((name, complement(value)),))
                yield Shape(Objects((clause,), required=(name,)))
        for pattern, part in patterns.items():
            if (value := self._keywords.formula(part, source)) != TRUE:
                keys = self._keywords.languages.of("pattern", pattern, True)
                yield Shape(Objects(low=1, some=((keys, complement(value)),)))
        rest = self._keywords.formula(node.get("additionalProperties", True), source)
        if rest != TRUE:
            keys = Automaton.words(tuple(named)).complement()
            for pattern in patterns:
                keys = keys.intersection(self._keywords.languages.of("pattern", pattern, False))
            yield Shape(Objects(low=1, some=((keys, complement(rest)),)))
        if source.knows("propertyNames"):
            names = self._keywords.formula(node["propertyNames"], source)
            if names != TRUE:
                yield Shape(Objects(low=1, some=((complement(names), TRUE),)))
        if low := int(node.get("minProperties", 0)):
            yield Shape(Objects(high=low - 1))
        if "maxProperties" in node:
            yield Shape(Objects(low=int(node["maxProperties"]) + 1))


def _schema_of(value: Any) -> dict[str, Any]:
    """A schema of one array or object."""
    if isinstance(value, list):
        parts = {"prefixItems": [{"const": item} for item in value]} if value else {}
        return {"type": "array", "minItems": len(value), "maxItems": len(value), **parts}
    properties = {name: {"const": part} for name, part in value.items()}
    required = {"required": list(value), "properties": properties, "maxProperties": len(value)}
    return {"type": "object", **required}


def _not_numbers(source: Source) -> Iterator[Shape]:
    for end, (value, allowed) in bounds(source.node):
        bound = (value, not allowed)
        yield Shape(Numbers(high=bound) if end == "minimum" else Numbers(low=bound))
    if "multipleOf" in source.node:
        step = Fraction(exact(source.node["multipleOf"]))
        yield Shape(Numbers(not_multiples=frozenset((step,))))
