"""A JSON schema read into alternatives: plain schemas of which a value has to fit one.

This is its disjunctive normal form, without `$ref`, `allOf`, `anyOf`, `oneOf` and dependencies.
Where a keyword has no place in it, the reader says so and goes on without. It knows JSON Schema,
and of grammars only that objects are closed there, unless `additionalProperties` opens them.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations, product
from typing import Any, NamedTuple

from jsonschema import validators
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with

from dlm.grammar.schema.pointer import pointer

# Keywords of one schema; instead of a subschema, the `Source`s that hold at once. "raw" are the
# schemas that it was made of, "where" is the place of the first.
Plain = dict[str, Any]

_MOST_ALTERNATIVES = 256
_SPLIT = {"$ref", "allOf", "anyOf", "oneOf", "dependencies", "dependentRequired"}
_SPLIT |= {"dependentSchemas"}
_LOWER = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"}
_UPPER = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"}
_KEPT = _LOWER | _UPPER | {"required", "pattern", "format", "multipleOf"}
_CHILD = ("items", "additionalProperties", "propertyNames")
_INEXACT = ("not", "if", "contains", "uniqueItems", "unevaluatedProperties", "unevaluatedItems")
_INEXACT += ("$dynamicRef", "$recursiveRef")
_MEANT = {  # a schema without `type` means the one of its keywords
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "object": {"properties", "required", "patternProperties", "additionalProperties"}
    | {"propertyNames", "minProperties", "maxProperties"},
}
_OPEN = ("additionalProperties", "patternProperties", "propertyNames", "minProperties")


class Source(NamedTuple):
    """A subschema, what resolves its references, and its JSON pointer."""

    node: Any
    resolver: Any
    where: str


class Reader:
    """Reads the parts of one schema. `problems` says what it left out, `unresolved` what it lacks;
    both by JSON pointer."""

    def __init__(self, schema: dict[str, Any] | bool):
        kind = validators.validator_for(schema, default=validators.Draft202012Validator)
        self._validator = kind(schema, registry=Registry())
        self._asserted = set(kind.VALIDATORS)
        self._spec = specification_with(str(kind.META_SCHEMA["$schema"]))
        self._ref_is_all = self._spec.name in ("draft-03", "draft-04", "draft-06", "draft-07")
        root = self._spec.create_resource(schema)
        self.root = Source(schema, Registry().resolver_with_root(root), "")
        self.problems: dict[str, str] = {}
        self.unresolved: dict[str, str] = {}
        self._made: list[Any] = []  # schemas are told apart by identity: these have to live on
        if self._spec.name == "draft-03":
            self.refuse("/$schema", "draft 3 is not read")

    def refuse(self, where: str, reason: str) -> None:
        self.problems.setdefault(where, reason)

    def all(self, sources: Iterable[Source], trail: frozenset[int] = frozenset()) -> list[Plain]:
        """The alternatives that fit every one of `sources`."""
        found: list[Plain] = [{}]
        for source in sources:
            found = self._both(found, self.read(source, trail))
        return found

    def read(self, source: Source, trail: frozenset[int] = frozenset()) -> list[Plain]:
        """The alternatives of `source`; `trail` is what is being read for the same value."""
        node, resolver, where = source
        if isinstance(node, bool):
            return [{}] if node else []
        if id(node) in trail:
            self.refuse(where, "refers to itself")
            return [{}]
        trail |= {id(node)}
        source = source._replace(resolver=resolver.in_subresource(self._spec.create_resource(node)))
        found: list[Plain] = [{}]
        if "$ref" in node:
            target = self._target(source)
            found = [{"$ref": target, "trail": trail}] if target else [{}]
            if self._ref_is_all:
                return found
        found = self._both(self._own(source), found)
        for part in self._parts(source):
            found = self._both(found, [plain for sub in part for plain in self.all(sub, trail)])
        if "oneOf" in node:
            whole = [self._both(found, self.read(sub, trail)) for sub in _listed(source, "oneOf")]
            branches = list(whole)
            for i, j in permutations(range(len(whole)), 2):
                branches[i] = self._without(branches[i], whole[j], source)
                if not self._all_apart(branches[i], whole[j]):
                    self.refuse(f"{where}/oneOf", "its branches may overlap")
            found = [plain for branch in branches for plain in branch]
        return found

    def strings(self, sources: Iterable[Source]) -> list[Plain]:
        """The alternatives of `all` that are strings."""
        string = {"type": "string"}
        plain = {"type": ["string"], "raw": (string,), "where": self.root.where}
        return self._both([plain], self.all(sources))

    def admits(self, raw: Iterable[Any], value: Any) -> bool:
        """Whether `value` is one of every schema in `raw`."""
        try:
            return all(self._validator.evolve(schema=schema).is_valid(value) for schema in raw)
        except Unresolvable as error:
            self.unresolved.setdefault("", str(error))
            return True

    def opened(self, plains: Iterable[Plain]) -> list[Plain]:
        """`plains`, or what they refer to."""
        found: list[Plain] = []
        for plain in plains:
            found += (
                self.opened(self.read(plain["$ref"], plain["trail"]))
                if "$ref" in plain
                else [plain]
            )
        return found

    def _target(self, source: Source) -> Source | None:
        reference = source.node["$ref"]
        try:
            found = source.resolver.lookup(reference)
        except (Unresolvable, ValueError):
            found = None
        if found is None or not isinstance(found.contents, dict | bool):
            reason = f"{reference!r:.80} leads to no schema in this document"
            self.unresolved[f"{source.where}/$ref"] = reason
            return None
        local = reference.startswith("#") and reference[1:2] in ("", "/")
        return Source(
            found.contents, found.resolver, reference[1:] if local else f"{source.where}/$ref"
        )

    def _parts(self, source: Source) -> Iterator[list[tuple[Source, ...]]]:
        """What else holds: of each part one, and of that all."""
        node, resolver, where = source
        if "allOf" in node:
            yield [tuple(_listed(source, "allOf"))]
        if "anyOf" in node:
            yield [(sub,) for sub in _listed(source, "anyOf")]
        for key in ("dependencies", "dependentRequired", "dependentSchemas"):
            if key in self._asserted and key in node:
                for name, needs in node[key].items():
                    place = f"{where}{pointer(key, name)}"
                    names = [needs] if isinstance(needs, str) else needs
                    if not isinstance(needs, dict | bool):
                        needs = {"required": list(names)}
                    absent, present = {"properties": {name: False}}, {"required": [name]}
                    self._made += [absent, present, needs]
                    yield [
                        (Source(absent, resolver, place),),
                        (Source(present, resolver, place), Source(needs, resolver, place)),
                    ]

    def _own(self, source: Source) -> list[Plain]:
        """The alternatives of the keywords that do not combine schemas."""
        node, resolver, where = source
        own = {key: value for key, value in node.items() if key not in _SPLIT}
        plain: Plain = {"raw": (own,), "where": where}
        if "const" in own or "enum" in own:
            values = [own["const"]] if "const" in own else own["enum"]
            plain["enum"] = [value for value in values if self.admits((own,), value)]
            return [plain] if plain["enum"] else []
        for key in _INEXACT:
            if key in self._asserted and _matters(own, key):
                self.refuse(f"{where}/{key}", "the grammar cannot say it")
        if "type" in own:
            types = [own["type"]] if isinstance(own["type"], str) else own["type"]
            plain["type"] = [t for t in types if t != "integer" or "number" not in types]
        plain |= {key: own[key] for key in own.keys() & _KEPT}
        if "pattern" in own:
            plain["pattern"] = [own["pattern"]]  # further ones may hold beside it
        for end, name in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if isinstance(plain.get(name), bool):  # draft 4
                strict = plain.pop(name)
                if strict and end in plain:
                    plain[name] = plain.pop(end)
        for key in ("properties", "patternProperties"):
            if key in own:
                plain[key] = {
                    name: (Source(sub, resolver, f"{where}{pointer(key, name)}"),)
                    for name, sub in own[key].items()
                }
        for key in _CHILD:
            if key in own and key in self._asserted:
                plain[key] = (Source(own[key], resolver, f"{where}/{key}"),)
        if isinstance(own.get("items"), list):  # until 2020-12
            plain["prefixItems"] = [(sub,) for sub in _listed(source, "items")]
            del plain["items"]
            if "additionalItems" in own:
                rest = Source(own["additionalItems"], resolver, f"{where}/additionalItems")
                plain["items"] = (rest,)
        elif "prefixItems" in own and "prefixItems" in self._asserted:
            plain["prefixItems"] = [(sub,) for sub in _listed(source, "prefixItems")]
        return [plain]

    def _both(self, left: list[Plain], right: list[Plain]) -> list[Plain]:
        """The alternatives that fit `left` and `right`."""
        if [{}] in (left, right):
            return right if left == [{}] else left
        pairs = list(product(self.opened(left), self.opened(right)))
        if len(pairs) > _MOST_ALTERNATIVES:
            where = next((plain["where"] for pair in pairs for plain in pair if plain), "")
            self.refuse(where, f"more than {_MOST_ALTERNATIVES} alternatives")
            return left
        return [plain for pair in pairs if (plain := self._joined(*pair)) is not None]

    def _joined(self, one: Plain, other: Plain) -> Plain | None:
        if not one or not other:
            return one or other
        joined: Plain = {**other, **one, "raw": one["raw"] + other["raw"]}
        if "enum" in joined:
            values = joined["enum"]
            joined["enum"] = [value for value in values if self.admits(joined["raw"], value)]
            return joined if joined["enum"] else None
        if "properties" in joined or "patternProperties" in joined:
            self._join_properties(joined, one, other)
        for key in one.keys() & other.keys() - {"raw", "where"}:
            mine, its = one[key], other[key]
            if key == "type":
                joined[key] = _common(mine, its)
                if not joined[key]:
                    return None
            elif key in _LOWER | _UPPER:
                joined[key] = (max if key in _LOWER else min)(mine, its)
            elif key in ("required", "pattern"):
                joined[key] = list(dict.fromkeys([*mine, *its]))
            elif key in _CHILD:
                joined[key] = _united(mine, its)
            elif key == "multipleOf" and isinstance(mine, int) and isinstance(its, int):
                joined[key] = math.lcm(mine, its)
            elif key in ("multipleOf", "prefixItems") and mine != its:
                self.refuse(f"{one['where']}/{key}", "another one holds beside it")
        for a, b in ((one, other), (other, one)):
            if "prefixItems" in a and "prefixItems" not in b and "items" in b:
                self.refuse(f"{b['where']}/items", "it meets the prefixItems of another")
        return joined

    def _join_properties(self, joined: Plain, one: Plain, other: Plain) -> None:
        names = dict.fromkeys([*one.get("properties", ()), *other.get("properties", ())])
        joined["properties"] = {
            name: _united(property_sources(one, name), property_sources(other, name))
            for name in names
        }
        for a, b in ((one, other), (other, one)):
            if "patternProperties" in a and "additionalProperties" in b:
                self.refuse(f"{a['where']}/patternProperties", "additionalProperties meet it")
        patterns = [plain.get("patternProperties", {}) for plain in (one, other)]
        if any(patterns):
            joined["patternProperties"] = {
                pattern: _united(patterns[0].get(pattern, ()), patterns[1].get(pattern, ()))
                for pattern in patterns[0] | patterns[1]
            }

    def _without(self, ones: list[Plain], others: list[Plain], source: Source) -> list[Plain]:
        """Those of `ones` that are apart from `others`, where a property tells: one that has
        to be there, since its values differ, or one that must not be, since `others` need it."""
        if self._all_apart(ones, others):
            return ones
        absent = (source._replace(node=False),)
        known = [plain.get("properties", {}).keys() for plain in self.opened([*ones, *others])]
        needed = [set(plain.get("required", ())) for plain in self.opened(others)]
        telling = [{"required": [name]} for name in sorted(_in_all(known))]
        telling += [{"properties": {name: absent}} for name in sorted(_in_all(needed))]
        for told in telling:
            told |= {"raw": (), "where": source.where}
            found = [p for p in self.opened(self._both(ones, [told])) if self._possible(p)]
            if found and self._all_apart(found, others):
                return found
        return ones

    def _possible(self, plain: Plain) -> bool:
        return all(self.all(property_sources(plain, name)) for name in plain.get("required", ()))

    def _all_apart(self, ones: list[Plain], others: list[Plain], depth: int = 4) -> bool:
        """No sentence that the grammar has for one of `ones` is a value of one of `others`."""
        return all(self._apart(one, other, depth) for one in ones for other in others)

    def _apart(self, one: Plain, other: Plain, depth: int) -> bool:
        if not depth or not one or not other:
            return False
        if "$ref" in one or "$ref" in other:
            return self._all_apart(self.opened([one]), self.opened([other]), depth - 1)
        if "enum" in one:
            return not any(self.admits(other["raw"], value) for value in one["enum"])
        if "enum" in other:
            return not any(self.admits(one["raw"], value) for value in other["enum"])
        shared = _common(types(one), other["type"]) if "type" in other else types(one)
        return all(
            (t == "object" and self._objects_apart(one, other, depth))
            or (t in ("number", "integer") and _beyond(one, other, "minimum", "maximum"))
            or (t == "array" and _beyond(one, other, "minItems", "maxItems"))
            or (t == "string" and _beyond(one, other, "minLength", "maxLength"))
            for t in shared
        )

    def _objects_apart(self, one: Plain, other: Plain, depth: int) -> bool:
        closed = not any(key in one for key in _OPEN) and {"properties", "required"} & one.keys()
        for name in {*one.get("required", ()), *other.get("required", ())}:
            known = name in one.get("properties", {}) or name in one.get("required", ())
            if not known and closed:
                return True
            if known and self._all_apart(
                self.all(property_sources(one, name)),
                self.all(property_sources(other, name)),
                depth - 1,
            ):
                return True
        return False


def _in_all(sets: Sequence[Iterable[str]]) -> set[str]:
    return set(sets[0]).intersection(*sets[1:]) if sets else set()


def types(plain: Plain) -> list[str]:
    """The types that `plain` has, or those that its keywords are about; none if it is anything."""
    if "type" in plain:
        return plain["type"]
    return [name for name, keys in _MEANT.items() if keys & plain.keys()] or [
        *_MEANT,
        "boolean",
        "null",
    ]


def property_sources(plain: Plain, name: str) -> tuple[Source, ...]:
    """What holds of the property `name`."""
    sources = plain.get("properties", {}).get(name, ())
    named = name in plain.get("properties", {})
    for pattern, subs in plain.get("patternProperties", {}).items():
        if re.search(pattern, name):
            sources, named = _united(sources, subs), True
    return sources if named else plain.get("additionalProperties", ())


def _beyond(one: Plain, other: Plain, low: str, high: str) -> bool:
    return any(
        a.get(low, -math.inf) > b.get(high, math.inf) for a, b in ((one, other), (other, one))
    )


def _common(mine: list[str], its: list[str]) -> list[str]:
    wide = [t for t in mine if t in its]
    return wide + ["integer"] * ({"number", "integer"} <= {*mine, *its} - {*wide})


def _united(mine: tuple[Source, ...], its: tuple[Source, ...]) -> tuple[Source, ...]:
    return tuple({id(source.node): source for source in (*mine, *its)}.values())


def _listed(source: Source, key: str) -> list[Source]:
    return [
        Source(sub, source.resolver, f"{source.where}/{key}/{index}")
        for index, sub in enumerate(source.node[key])
    ]


def _matters(own: dict[str, Any], key: str) -> bool:
    if key == "if":
        return "then" in own or "else" in own
    return own.get(key, False) is not False if key == "uniqueItems" else key in own
