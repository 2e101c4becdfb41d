"""What the keywords of one subschema say of values of one type.

`Keywords` knows each keyword's meaning, but neither how alternatives are combined nor grammars.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from dlm.grammar.schema.constant import Constant, constant, exact
from dlm.grammar.schema.facets import (
    EMPTY,
    Arrays,
    Bound,
    Clause,
    Contains,
    Facets,
    Numbers,
    Objects,
    Shape,
    Strings,
)
from dlm.grammar.schema.formats import is_textual
from dlm.grammar.schema.formula import (
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
from dlm.grammar.schema.pointer import pointer
from dlm.grammar.schema.reader import Reader, Source
from dlm.grammar.schema.syntax import has_ref_alone

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
        maxProperties dependencies dependentRequired dependentSchemas
        unevaluatedProperties""".split()
    ),
}
_COMBINED = ("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if")
_SAID = frozenset((*_COMBINED, "type", "enum", "const")).union(*ABOUT.values())


class Keywords:
    """Reads the keywords of the subschemas of `reader`."""

    def __init__(self, reader: Reader, languages: Languages):
        self.reader, self.languages = reader, languages
        self._lists: dict[Source, list[tuple[Constant, ...]]] = {}
        self._combined: dict[tuple[Source, bool, bool], Formula] = {}

    def formula(self, node: Any, parent: Source) -> Formula:
        if isinstance(node, bool):
            return TRUE if node else FALSE
        if node.keys().isdisjoint(_SAID):
            return TRUE
        return Leaf(self.reader.source(node, parent))

    def made_up(self, node: dict[str, Any], parent: Source) -> Formula:
        """A schema that is not in the document."""
        return Leaf(self.reader.source(node, parent))

    def combined(self, source: Source, kind: str, annotate: bool = False) -> Formula:
        """What the schemas that it applies to the same value say together.

        To `annotate`, those count too that say nothing but what is evaluated.
        """
        key = source, kind == "object", annotate
        if key not in self._combined:
            self._combined[key] = self._together(source, *key[1:])
        return self._combined[key]

    def _together(self, source: Source, is_object: bool, annotate: bool) -> Formula:
        node, found = source.node, []
        for word in ("$ref", "$dynamicRef", "$recursiveRef"):
            if source.knows(word):
                target = self.reader.target(source, word)
                found.append(TRUE if target.node.keys().isdisjoint(_SAID) else Leaf(target))
        if alone(source):
            return every(*found)
        if "allOf" in node:
            found += [self.formula(part, source) for part in node["allOf"]]
        if "anyOf" in node:
            parts = tuple(self.formula(part, source) for part in node["anyOf"])
            found.append(Some(parts) if annotate else some(*parts))
        if "oneOf" in node:
            parts = tuple(self.formula(part, source) for part in node["oneOf"])
            found.append(parts[0] if len(parts) == 1 else ExactlyOne(parts))
        if "not" in node:
            found.append(complement(self.formula(node["not"], source)))
        if source.knows("if") and (annotate or "then" in node or "else" in node):
            branches = [self.formula(node.get(word, True), source) for word in ("then", "else")]
            found.append(Conditional(self.formula(node["if"], source), *branches))
        if is_object:
            found += self._dependencies(source)
        return every(*found)

    def _dependencies(self, source: Source) -> Iterator[Formula]:
        for word in ("dependencies", "dependentRequired", "dependentSchemas"):
            if source.knows(word):
                for name, needs in source.node[word].items():
                    if not isinstance(needs, dict | bool):
                        names = [needs] if isinstance(needs, str) else needs
                        needs = {"required": names} if names else True
                    test = self.made_up({"required": [name]}, source)
                    yield Conditional(test, self.formula(needs, source), TRUE)

    def own(self, source: Source, kind: str, annotate: bool) -> Shape | None:
        """What the other keywords say; None if no value of that type fits."""
        node = source.node
        if alone(source):
            return whole(kind)
        named = types(source)
        integer = named is not None and kind == "number" and "number" not in named
        if named is not None and kind not in named and not (integer and "integer" in named):
            return None
        values = whole(kind).values
        for listed in self.listed(source):
            fitting = tuple(value for value in listed if value.kind == kind)
            values = fitting if values is None else tuple(filter(set(fitting).__contains__, values))
        typed = named is not None or "enum" in node or source.knows("const")
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
        said = node.keys()
        if not is_textual(node.get("format")):  # nobody knows what it is about
            said = said - {"format"}
        hints = frozenset(k for k, words in ABOUT.items() if words & said)
        return Shape(facets, values, typed, hints)

    def listed(self, source: Source) -> list[tuple[Constant, ...]]:
        """The values of `const` and of `enum`."""
        if source not in self._lists:
            lists = [[source.node["const"]]] if source.knows("const") else []
            lists += [source.node["enum"]] if "enum" in source.node else []
            self.languages.work.count(sum(map(len, lists)) // 2, source.where)
            self._lists[source] = [tuple(dict.fromkeys(map(constant, each))) for each in lists]
        return self._lists[source]

    def _strings(self, source: Source) -> Strings:
        node = source.node
        languages = [
            (word, node[word], True)
            for word in ("pattern", "format")
            if word in node and self.languages.asserts(word, source)
        ]
        high = node.get("maxLength")
        return Strings(
            int(node.get("minLength", 0)),
            None if high is None else int(high),
            frozenset(languages),
        )

    def _arrays(self, source: Source, annotate: bool) -> Arrays:
        node = source.node
        prefix, rest = self.items(source)
        found = rest is not None
        contains, matched = (), ()
        if source.knows("contains"):
            item = self.formula(node["contains"], source)
            low, high = contained(source)
            if low or high is not None:
                contains = (Contains(item, low, high),)
            matched = (item,) if annotate and source.draft != 2019 else ()
        high = node.get("maxItems")
        return Arrays(
            prefix,
            TRUE if rest is None else rest,
            int(node.get("minItems", 0)),
            None if high is None else int(high),
            contains,
            unique=bool(node.get("uniqueItems")),
            evaluated=0 if not annotate else None if found else len(prefix),
            matched=matched,
        )

    def items(self, source: Source) -> tuple[tuple[Formula, ...], Formula | None]:
        """Of the first items, and of the rest."""
        node, rest = source.node, None
        first = node["prefixItems"] if source.knows("prefixItems") else []
        if isinstance(node.get("items"), list):
            first = node["items"]
            if source.knows("additionalItems"):
                rest = self.formula(node["additionalItems"], source)
        elif "items" in node:
            rest = self.formula(node["items"], source)
        return tuple(self.formula(part, source) for part in first), rest

    def key_patterns(self, source: Source) -> dict[str, Any]:
        """The `patternProperties` whose patterns have automata."""
        return {
            pattern: part
            for pattern, part in source.node.get("patternProperties", {}).items()
            if self.languages.known(
                "pattern", pattern, source.where + pointer("patternProperties", pattern)
            )
        }

    def _objects(self, source: Source, annotate: bool) -> Objects:
        node = source.node
        rest = node.get("additionalProperties")
        patterns = self.key_patterns(source)
        unsaid = len(patterns) < len(node.get("patternProperties", ()))  # so any key may be one
        clause = Clause(
            tuple((n, self.formula(v, source)) for n, v in node.get("properties", {}).items()),
            tuple((p, self.formula(v, source)) for p, v in patterns.items()),
            TRUE if rest is None or unsaid else self.formula(rest, source),
        )
        names = ()
        if source.knows("propertyNames"):
            names = (self.formula(node["propertyNames"], source),)
        high = node.get("maxProperties")
        objects = Objects(
            () if clause == Clause() else (clause,),
            tuple(name for name in names if name != TRUE),
            tuple(dict.fromkeys(node.get("required", ()))),
            int(node.get("minProperties", 0)),
            None if high is None else int(high),
            opened=unsaid or (rest is not None and rest is not False),
            named="properties" in node,
        )
        if not annotate or objects == EMPTY["object"]:
            return objects
        seen = frozenset(node.get("properties", ())), frozenset(node.get("patternProperties", ()))
        return objects.both(Objects(evaluated=(*seen, rest is not None)))


def alone(source: Source) -> bool:
    """Its `$ref` is all that counts."""
    return has_ref_alone(source.node, source.draft)


def whole(kind: str) -> Shape:
    """All values of a type."""
    if kind == "boolean":
        return Shape(None, (constant(True), constant(False)))
    return Shape(None, (constant(None),)) if kind == "null" else Shape(EMPTY[kind])


def types(source: Source) -> list[str] | None:
    named = source.node.get("type")
    return [named] if isinstance(named, str) else named


def contained(source: Source) -> tuple[int, int | None]:
    node = source.node
    high = int(node["maxContains"]) if source.knows("maxContains") else None
    return int(node["minContains"]) if source.knows("minContains") else 1, high


def bounds(node: dict[str, Any]) -> Iterator[tuple[str, Bound]]:
    for end, strict in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        exclusive = node.get(strict)
        if end in node:
            yield end, (exact(node[end]), exclusive is not True)
        if exclusive is not None and not isinstance(exclusive, bool):
            yield end, (exact(exclusive), False)


def _numbers(source: Source, integer: bool) -> Numbers:
    found = Numbers(integer=integer)
    for end, bound in bounds(source.node):
        found = found.both(Numbers(low=bound) if end == "minimum" else Numbers(high=bound))
    if "multipleOf" in source.node:
        step = Fraction(exact(source.node["multipleOf"]))
        found = found.both(Numbers(multiples=frozenset((step,))))
    return found
