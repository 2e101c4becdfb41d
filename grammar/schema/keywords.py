"""Meaning of the keywords of one subschema for values of one type.

`Keywords` turns keywords into facets, `NegatedKeywords` into facets of the values that they refuse.
Knows neither how alternatives are combined nor grammars.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.schema.conditions import (
    EMPTY,
    NO_CLAUSE,
    Alternative,
    Arrays,
    Bound,
    Clause,
    Contains,
    Facets,
    Numbers,
    Objects,
    Strings,
)
from dlm.grammar.schema.constants import Constant, constant, exact
from dlm.grammar.schema.documents import REFERENCES, DocumentReader, Source, pointer
from dlm.grammar.schema.formats import is_textual
from dlm.grammar.schema.formulas import (
    FALSE,
    TRUE,
    Conditional,
    ExactlyOne,
    Formula,
    Leaf,
    Some,
    complement,
    every,
    some,
)
from dlm.grammar.schema.languages import Languages

ABOUT = {
    "string": frozenset(("minLength", "maxLength", "pattern", "format")),
    "number": frozenset(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    ),
    "array": frozenset(
        """items prefixItems additionalItems minItems maxItems contains uniqueItems
        unevaluatedItems""".split()
    ),
    "object": frozenset(
        """properties patternProperties additionalProperties required propertyNames minProperties
        maxProperties dependentRequired dependentSchemas unevaluatedProperties""".split()
    ),
}
_DEPENDING = "\0depending"  # marks a `required` that is made up for a dependency
_COMBINED = (*REFERENCES, "allOf", "anyOf", "oneOf", "not", "if")
_ABOUT_SOME = frozenset().union(*ABOUT.values())
_ASSERTING = _ABOUT_SOME.union(_COMBINED, ("type", "enum", "const"))
_DEPENDENCIES = "dependentRequired", "dependentSchemas"


class Keywords:
    """Reader of the keywords of the subschemas of `reader`."""

    def __init__(self, reader: DocumentReader, languages: Languages):
        self.reader, self.languages = reader, languages
        self._lists: dict[Source, list[tuple[Constant, ...]]] = {}
        self._combined: dict[tuple[Source, bool, bool], Formula] = {}
        self._conditions: dict[Source, Formula] = {}

    def formula(self, node: Any, parent: Source) -> Formula:
        """Return the condition of `node`, a subschema of `parent` or one made up for it."""
        return FALSE if node is False else self._condition(self.reader.source(node, parent))

    def _condition(self, source: Source) -> Formula:
        """Return the condition of a subschema, the same object at each call."""
        if source not in self._conditions:
            is_true = source.node.keys().isdisjoint(_ASSERTING)
            self._conditions[source] = TRUE if is_true else Leaf(source)
        return self._conditions[source]

    def combined(self, source: Source, kind: str, annotate: bool = False) -> Formula:
        """Return the conjunction of the schemas that `source` applies to the same value.

        If `annotate`, schemas that only mark properties or items as evaluated are included.
        """
        key = source, kind == "object", annotate
        if key not in self._combined:
            self._combined[key] = self._together(source, *key[1:])
        return self._combined[key]

    def _together(self, source: Source, is_object: bool, annotate: bool) -> Formula:
        words = (*_COMBINED, *_DEPENDENCIES) if is_object else _COMBINED
        if source.node.keys().isdisjoint(words):
            return TRUE
        parts = [part for _, part in self.conjuncts(source, annotate)]
        if is_object:
            parts += (part for _, part in self.dependencies(source))
        return every(*parts)

    def conjuncts(self, source: Source, annotate: bool = False) -> Iterator[tuple[str, Formula]]:
        """Yield the schemas that `source` applies to the same value, whatever its type, each with
        the keyword that applies it."""
        node = source.node
        for word in REFERENCES:
            if word in node:
                yield word, self._condition(self.reader.target(source, word))
        for i, part in enumerate(node.get("allOf", ())):
            yield f"allOf/{i}", self.formula(part, source)
        if "anyOf" in node:
            parts = tuple(self.formula(part, source) for part in node["anyOf"])
            yield "anyOf", Some(parts) if annotate else some(*parts)
        if "oneOf" in node:
            parts = tuple(self.formula(part, source) for part in node["oneOf"])
            yield "oneOf", parts[0] if len(parts) == 1 else ExactlyOne(parts)
        if "not" in node:
            yield "not", complement(self.formula(node["not"], source))
        if "if" in node and (annotate or "then" in node or "else" in node):
            branches = [self.formula(node.get(word, True), source) for word in ("then", "else")]
            yield "if", Conditional(self.formula(node["if"], source), *branches)

    def dependencies(self, source: Source) -> Iterator[tuple[str, Formula]]:
        """Yield the conditions on objects with certain properties, each with its keyword."""
        needed = source.node.get("dependentRequired", {})
        schemas = source.node.get("dependentSchemas", {})
        others = (
            ("dependentRequired", name, {"required": names, _DEPENDING: True})
            for name, names in needed.items()
            if names
        )
        named = (("dependentSchemas", name, part) for name, part in schemas.items())
        for word, name, part in (*others, *named):
            test = self.formula({"required": [name], _DEPENDING: True}, source)
            yield pointer(word, name)[1:], Conditional(test, self.formula(part, source), TRUE)

    def own(self, source: Source, kind: str, annotate: bool) -> Alternative | None:
        """Return the constraints of the other keywords; None if no value of that type fits."""
        if not accepts(source, kind):
            return None
        node = source.node
        named = node.get("type")
        integer = named is not None and kind == "number" and "number" not in named
        values = whole(kind).values
        for listed in self.listed(source):
            fitting = tuple(value for value in listed if value.kind == kind)
            values = fitting if values is None else tuple(filter(set(fitting).__contains__, values))
        typed = named is not None or "enum" in node or "const" in node
        if values == ():
            return None
        facets: Facets | None = None
        if kind == "string":
            facets = self._strings(source)
        elif kind == "number":
            facets = _numbers(source, integer)
        elif kind == "array":
            facets = self._arrays(source, annotate)
        elif kind == "object":
            facets = self._objects(source, annotate)
        present = node.keys() & _ABOUT_SOME
        if "format" in present and not is_textual(node["format"]):
            present.discard("format")  # an unknown format implies no type
        hints = present and [k for k, words in ABOUT.items() if not words.isdisjoint(present)]
        return Alternative(facets, values, typed, frozenset(hints))

    def listed(self, source: Source) -> list[tuple[Constant, ...]]:
        """Return the values of `const` and those of `enum`, a tuple for each keyword present."""
        if source not in self._lists:
            lists = [[source.node["const"]]] if "const" in source.node else []
            lists += [source.node["enum"]] if "enum" in source.node else []
            self.languages.work.count(sum(map(len, lists)) // 2, source.where)
            self._lists[source] = [tuple(dict.fromkeys(map(constant, values))) for values in lists]
        return self._lists[source]

    def _strings(self, source: Source) -> Strings:
        node = source.node
        languages = [
            (word, node[word], True)
            for word in ("pattern", "format")
            if word in node and self.languages.asserts(word, source)
        ]
        return Strings(node.get("minLength", 0), node.get("maxLength"), frozenset(languages))

    def _arrays(self, source: Source, annotate: bool) -> Arrays:
        node = source.node
        prefix, further = self.items(source)
        has_items = further is not None
        contains, matched = (), ()
        if "contains" in node:
            item = self.formula(node["contains"], source)
            low, high = node.get("minContains", 1), node.get("maxContains")
            if low or high is not None:
                contains = (Contains(item, low, high),)
            matched = (item,) if annotate and source.draft != 2019 else ()
        return Arrays(
            prefix,
            TRUE if further is None else further,
            node.get("minItems", 0),
            node.get("maxItems"),
            contains,
            unique=bool(node.get("uniqueItems")),
            evaluated=0 if not annotate else None if has_items else len(prefix),
            matched=matched,
        )

    def items(self, source: Source) -> tuple[tuple[Formula, ...], Formula | None]:
        """Return the schemas of the first items, and of the rest; None if the rest has none."""
        node = source.node
        prefix = tuple(self.formula(part, source) for part in node.get("prefixItems", ()))
        return prefix, self.formula(node["items"], source) if "items" in node else None

    def key_patterns(self, source: Source) -> dict[str, Any]:
        """Return the `patternProperties` whose patterns have automata."""
        return {
            pattern: part
            for pattern, part in source.node.get("patternProperties", {}).items()
            if self.languages.has_automaton(
                "pattern", pattern, source.where + pointer("patternProperties", pattern)
            )
        }

    def _objects(self, source: Source, annotate: bool) -> Objects:
        node = source.node
        additional = node.get("additionalProperties")
        patterns = self.key_patterns(source)
        # Any key may match a pattern without an automaton.
        inexact = len(patterns) < len(node.get("patternProperties", ()))
        clause = Clause(
            tuple((n, self.formula(v, source)) for n, v in node.get("properties", {}).items()),
            tuple((p, self.formula(v, source)) for p, v in patterns.items()),
            TRUE if additional is None or inexact else self.formula(additional, source),
        )
        names = ()
        if "propertyNames" in node:
            names = (self.formula(node["propertyNames"], source),)
        objects = Objects(
            () if clause == NO_CLAUSE else (clause,),
            tuple(name for name in names if name is not TRUE),
            tuple(dict.fromkeys(node.get("required", ()))),
            node.get("minProperties", 0),
            node.get("maxProperties"),
            opened=inexact or (additional is not None and additional is not False),
            named="properties" in node,
            depending=frozenset(node["required"] if _DEPENDING in node else ()),
        )
        if not annotate or objects == EMPTY["object"]:
            return objects
        seen = frozenset(node.get("properties", ())), frozenset(node.get("patternProperties", ()))
        return objects.both(Objects(evaluated=(*seen, additional is not None)))


def accepts(source: Source, kind: str) -> bool:
    """Whether `type` in `source` allows values of the type `kind`."""
    named = source.node.get("type")
    return named is None or kind in named or (kind == "number" and "integer" in named)


def whole(kind: str) -> Alternative:
    """Return the alternative that all values of the type `kind` fit."""
    return _WHOLE[kind]


_WHOLE = {
    **{kind: Alternative(facets) for kind, facets in EMPTY.items()},
    "boolean": Alternative(None, (constant(True), constant(False))),
    "null": Alternative(None, (constant(None),)),
}


def bounds(node: dict[str, Any]) -> Iterator[tuple[str, Bound]]:
    """Yield the limits of a number, each with "minimum" or "maximum"."""
    for end, strict in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if end in node:
            yield end, (exact(node[end]), True)
        if strict in node:
            yield end, (exact(node[strict]), False)


def _numbers(source: Source, integer: bool) -> Numbers:
    numbers = Numbers(integer=integer)
    for end, bound in bounds(source.node):
        numbers = numbers.both(Numbers(low=bound) if end == "minimum" else Numbers(high=bound))
    if "multipleOf" in source.node:
        step = Fraction(exact(source.node["multipleOf"]))
        numbers = numbers.both(Numbers(multiples=frozenset((step,))))
    return numbers


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
