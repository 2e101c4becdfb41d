"""Meaning of the keywords of one subschema for values of one type: keywords turned into facets.

Knows neither how alternatives are combined nor grammars.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import chain
from typing import Any

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.schema.conditions import (
    EMPTY,
    KINDS,
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
from dlm.grammar.schema.documents import DocumentReader, Source
from dlm.grammar.schema.drafts import REFERENCES, pointer
from dlm.grammar.schema.formats import is_textual
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
_KIND_ABOUT = {word: kind for kind, words in ABOUT.items() for word in words}
_COMBINED = (*REFERENCES, "allOf", "anyOf", "oneOf", "not", "if")
_ABOUT_SOME = frozenset().union(*ABOUT.values())
_ASSERTING = _ABOUT_SOME.union(_COMBINED, ("type", "enum", "const"))
_MOST_EXAMINED = 16_384  # formulas, for the types of values that may fit them
_DEPENDENCIES = "dependentRequired", "dependentSchemas"


class Keywords:
    """Reader of the keywords of the subschemas of `reader`."""

    def __init__(self, reader: DocumentReader, languages: Languages):
        self.reader, self.languages = reader, languages
        self._lists: dict[Source, list[tuple[Constant, ...]]] = {}
        self._combined: dict[tuple[Source, bool, bool], Formula] = {}
        self._conditions: dict[Source, Formula] = {}
        self._kinds: dict[Formula, Sequence[str]] = {}
        self._typed: dict[tuple[str, ...], Leaf] = {}  # by the types that are all a schema asks for

    def formula(self, node: Any, parent: Source) -> Formula:
        """Return the condition of `node`, a subschema of `parent` or one made up for it."""
        return FALSE if node is False else self._condition(self.reader.source(node, parent))

    def _condition(self, source: Source) -> Formula:
        """Return the condition of a subschema, the same object at each call.

        Subschemas that assert nothing but the same types have the same condition.
        """
        condition = self._conditions.get(source)
        if condition is None:
            words = source.node.keys() & _ASSERTING
            if not words:
                condition = TRUE
            elif len(words) == 1 and "type" in words:
                condition = self._typed.setdefault(tuple(source.node["type"]), Leaf(source))
            else:
                condition = Leaf(source)
            self._conditions[source] = condition
        return condition

    def kinds(self, formula: Formula) -> Sequence[str]:
        """Return the types of values that may fit `formula`, as far as `type` shows in it, in
        schemas that it refers to, and in those of `allOf`, `anyOf` and `oneOf`.

        They are all types if too many formulas have been examined.
        """
        kinds = self._kinds.get(formula)
        if kinds is None and len(self._kinds) >= _MOST_EXAMINED:
            return KINDS
        if kinds is None:
            self._kinds[formula] = KINDS  # assumed while it is examined
            kinds = self._kinds[formula] = self._possible_kinds(formula)
        return kinds

    def _possible_kinds(self, formula: Formula) -> Sequence[str]:
        match formula:
            case Leaf(source, True):
                kinds = kinds_of(source)
                try:
                    combined = self.combined(source, "string")  # of all types but objects
                except InvalidGrammarError:
                    return kinds  # a wrong reference is an error where it is read
                if combined is TRUE:
                    return kinds
                possible = self.kinds(combined)
                return [kind for kind in kinds if kind in possible]
            case Every(parts):
                possible = [self.kinds(part) for part in parts]
                return [kind for kind in KINDS if all(kind in kinds for kinds in possible)]
            case Some(parts) | ExactlyOne(parts):
                possible = set(chain.from_iterable(map(self.kinds, parts)))
                return [kind for kind in KINDS if kind in possible]
        return KINDS

    def combined(self, source: Source, kind: str, annotate: bool = False) -> Formula:
        """Return the conjunction of the schemas that `source` applies to the same value.

        If `annotate`, schemas that only mark properties or items as evaluated are included.
        """
        depending = kind == "object" and not source.node.keys().isdisjoint(_DEPENDENCIES)
        key = source, depending, annotate
        if key not in self._combined:
            self._combined[key] = self._together(source, *key[1:])
        return self._combined[key]

    def _together(self, source: Source, depending: bool, annotate: bool) -> Formula:
        if not depending and source.node.keys().isdisjoint(_COMBINED):
            return TRUE
        parts = [part for _, part in self.conjuncts(source, annotate)]
        if depending:
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
        values, has_values = whole(kind).values, "enum" in node or "const" in node
        for listed in self.listed(source) if has_values else ():
            fitting = tuple(value for value in listed if value.kind == kind)
            values = fitting if values is None else tuple(filter(set(fitting).__contains__, values))
        if values == ():
            return None
        facets: Facets | None = EMPTY.get(kind)
        if facets is not None and (integer or not ABOUT[kind].isdisjoint(node)):
            facets = self._facets(source, kind, integer, annotate)
        hints = frozenset(
            _KIND_ABOUT[word]
            for word in _ABOUT_SOME.intersection(node)
            if word != "format" or is_textual(node[word])  # an unknown format implies no type
        )
        return Alternative(facets, values, named is not None or has_values, hints)

    def _facets(self, source: Source, kind: str, integer: bool, annotate: bool) -> Facets:
        """Return what the keywords about a type other than null and booleans require."""
        match kind:
            case "string":
                return self._strings(source)
            case "number":
                return _numbers(source, integer)
            case "array":
                return self._arrays(source, annotate)
            case _:
                return self._objects(source, annotate)

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
            (clause,) if clause.properties or clause.patterns or clause.rest is not TRUE else (),
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


def kinds_of(source: Source) -> Sequence[str]:
    """Return the types of values that `type` in `source` allows."""
    named = source.node.get("type")
    if named is None:
        return KINDS
    if len(named) == 1:
        return ("number",) if named[0] == "integer" else named
    return [kind for kind in KINDS if accepts(source, kind)]


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
