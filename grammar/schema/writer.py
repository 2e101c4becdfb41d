"""A JSON schema as xgrammar 0.2.8 takes it to the letter, and what it cannot enforce.

A schema is read into alternatives and written again in the few words that xgrammar is exact about.
What is written may allow less than the schema: an object is closed unless `additionalProperties`
opens it, a schema with `minimum` and no type means a number, a number with bounds has at most six
digits behind the point. It allows more only where `inexact` says so. Neither a grammar nor a
vocabulary is known here.
"""

import hashlib
import json
import math
import re
from dataclasses import dataclass
from typing import Any

from dlm.grammar.schema.normal import Plain, Reader, Source, property_sources, types
from dlm.grammar.schema.scalars import number_schema, string_schema
from dlm.grammar.schema.strings import Strings

# xgrammar's cache takes schemas for equal that differ in what these hold only, be they keywords,
# the names of properties, or the keys of a constant.
_OVERLOOKED = {"title", "default", "description", "examples", "deprecated", "readOnly"}
_OVERLOOKED |= {"writeOnly", "$comment", "$schema"}
_MOST_DEFINITIONS = 2000
_INT64 = 2**63


@dataclass(frozen=True)
class Enforceable:
    """`schema` is for xgrammar. `inexact` are the places where it allows more, `unresolved` the
    references that lead nowhere: JSON pointers of the original, each with its reason."""

    schema: dict[str, Any] | bool
    inexact: tuple[tuple[str, str], ...]
    unresolved: tuple[tuple[str, str], ...]


def enforceable(schema: dict[str, Any] | bool) -> Enforceable:
    """Of a `schema` that is valid in its draft. `RecursionError` if it is nested too deeply."""
    writer = _Writer(schema)
    written = writer.document()
    problems, unresolved = writer.reader.problems, writer.reader.unresolved
    return Enforceable(written, tuple(problems.items()), tuple(unresolved.items()))


class _Writer:
    def __init__(self, schema: dict[str, Any] | bool):
        self.reader = Reader(schema)
        self._names: dict[tuple[int, ...], str] = {}  # what is referred to, by its sources
        self._queue: list[tuple[str, tuple[Source, ...]]] = []
        self._met: set[tuple[int, ...]] = set()
        self._direct: dict[str, set[str]] = {}  # which definitions stand for which at once

    def document(self) -> dict[str, Any] | bool:
        root = self.reader.root
        self._names[_key((root,))] = "#"
        written = self._definition("#", (root,))
        definitions: dict[str, Any] = {}
        while self._queue and len(definitions) < _MOST_DEFINITIONS:
            name, sources = self._queue.pop()
            definitions[name.rsplit("/", 1)[1]] = self._definition(name, sources)
        if self._queue:
            self.reader.refuse(root.where, f"more than {_MOST_DEFINITIONS} definitions")
            return True
        if any(name in self._reach(name) for name in self._direct):
            self.reader.refuse(root.where, "a reference leads to itself")
            return True
        if definitions and isinstance(written, dict):
            written |= {"$defs": definitions}
        return written

    def _definition(self, name: str, sources: tuple[Source, ...]) -> dict[str, Any] | bool:
        plains = self.reader.all(sources)
        self._direct[name] = {
            self._reference((plain["$ref"],)) for plain in plains if "$ref" in plain
        }
        return self._written(plains)

    def _reach(self, name: str) -> set[str]:
        reached: set[str] = set()
        edge = set(self._direct[name])
        while edge:
            reached |= edge
            edge = set().union(*(self._direct[other] for other in edge)) - reached
        return reached

    def _reference(self, sources: tuple[Source, ...]) -> str:
        key = _key(sources)
        if key not in self._names:
            self._names[key] = f"#/$defs/{len(self._names)}"
            self._queue.append((self._names[key], sources))
        return self._names[key]

    def _child(self, sources: tuple[Source, ...]) -> dict[str, Any] | bool:
        """Written in place the first time, referred to from then on."""
        key = _key(sources)
        if not sources:
            return {}
        if any(isinstance(s.node, dict) and s.node for s in sources) and (
            key in self._names or key in self._met or len(sources) > 1
        ):
            if not self.reader.all(sources):
                return False
            return {"$ref": self._reference(sources)}
        self._met.add(key)
        return self._written(self.reader.all(sources))

    def _written(self, plains: list[Plain]) -> dict[str, Any] | bool:
        found: list[dict[str, Any]] = []
        for plain in plains:
            for schema in self._schemas(plain):
                if not schema:
                    return {}
                if schema not in found:
                    found.append(schema)
        if len(found) > 1:
            return {"anyOf": found}
        return found[0] if found else False

    def _schemas(self, plain: Plain) -> list[dict[str, Any]]:
        """One for each type that `plain` may have."""
        if not plain.keys() - {"raw", "where"}:
            return [{}]
        if "$ref" in plain:
            return [{"$ref": self._reference((plain["$ref"],))}]
        if "enum" in plain:
            if any(map(_imprecise, plain["enum"])):
                self.reader.refuse(f"{plain['where']}/enum", "it has integers of over 64 bits")
            return [_marked({"enum": plain["enum"]}, plain["enum"])]
        found = []
        for name in types(plain):
            if name in ("string", "number", "integer"):
                schema, problems = (
                    string_schema(plain) if name == "string" else number_schema(plain, name)
                )
                for key, reason in problems.items():
                    self._refuse(plain, key, reason)
            elif name == "array":
                schema = self._array(plain)
            elif name == "object":
                schema = self._object(plain)
            else:
                schema = {"type": name}
            if schema is not None:
                found.append(schema)
        return found

    def _refuse(self, plain: Plain, key: str, reason: str) -> None:
        self.reader.refuse(f"{plain['where']}/{key}", reason)

    def _array(self, plain: Plain) -> dict[str, Any] | None:
        low, high = plain.get("minItems", 0), plain.get("maxItems", math.inf)
        first = [self._child(sources) for sources in plain.get("prefixItems", [])]
        rest = self._child(plain["items"]) if "items" in plain else {}
        if "items" not in plain and low <= len(first) and first:
            rest = False  # as the properties that an object does not name
        if False in first:
            first, rest = first[: first.index(False)], False
        if high <= len(first):
            first, rest = first[: int(high)], False
        if rest is False:
            high = min(high, len(first))
        if low > high:
            return None
        schema: dict[str, Any] = {"type": "array", "items": rest}
        if schema == {"type": "array", "items": {}} and not low and high == math.inf:
            return {"type": "array"}
        if first:
            schema["prefixItems"] = first
        bounds = {"minItems": int(low)} if low else {}
        return schema | bounds | ({} if high == math.inf else {"maxItems": int(high)})

    def _object(self, plain: Plain) -> dict[str, Any] | None:
        required = plain.get("required", [])
        names = list(dict.fromkeys([*plain.get("properties", ()), *required]))
        patterns = plain.get("patternProperties", {})
        properties: dict[str, Any] = {}
        forbidden = []
        for name in names:
            fits = self._may_be_named(name, plain)
            child = self._child(property_sources(plain, name)) if fits else False
            if child is not False:
                properties[name] = child
            elif name in required:
                return None
            else:
                forbidden.append(name)
        schema: dict[str, Any] = {"type": "object"}
        if properties:
            schema["properties"] = properties
        if required:
            schema["required"] = list(required)
        bounds = {
            key: int(plain[key]) for key in ("minProperties", "maxProperties") if key in plain
        }
        if bounds.get("maxProperties", math.inf) < max(
            bounds.get("minProperties", 0), len(required)
        ):
            return None
        bare = not {"properties", "required", "patternProperties"} & plain.keys()
        others: dict[str, Any] | bool = {} if bare else False
        if "additionalProperties" in plain:
            others = self._child(plain["additionalProperties"])
        if patterns:
            schema |= self._patterns(plain, names)
        elif others is False:
            schema["additionalProperties"] = False
        else:
            schema |= self._others(plain, names, forbidden, others)
        opened = patterns or others is not False
        least = bounds.get("minProperties", 0)
        if opened and least > max(1, len(required)):
            self._refuse(plain, "minProperties", "a key may be written twice")
        if not opened and least > len(properties):
            return None
        return _marked(schema | bounds, properties)

    def _may_be_named(self, name: str, plain: Plain) -> bool:
        return self.reader.admits([s.node for s in plain.get("propertyNames", ())], name)

    def _patterns(self, plain: Plain, names: list[str]) -> dict[str, Any]:
        """Keys that match a pattern; the others are left out."""
        patterns = plain["patternProperties"]
        where = f"{plain['where']}/patternProperties"
        if "propertyNames" in plain:
            self.reader.refuse(where, "propertyNames are beside it")
        values = {pattern: self._child(sources) for pattern, sources in patterns.items()}
        values = {pattern: value for pattern, value in values.items() if value is not False}
        if len(patterns) > 1 and len({json.dumps(value) for value in values.values()}) > 1:
            self.reader.refuse(where, "a key may match several patterns")
        for pattern in patterns:
            if reason := Strings((pattern,)).problem:
                self.reader.refuse(where, reason)
            if any(re.search(pattern, name) for name in names):
                self.reader.refuse(where, "a named property may match it")
        words = {Strings((pattern,)).word: value for pattern, value in values.items()}
        return {"patternProperties": words}

    def _others(
        self, plain: Plain, names: list[str], forbidden: list[str], value: dict[str, Any] | bool
    ) -> dict[str, Any]:
        """Keys that the schema does not name."""
        where = f"{plain['where']}/additionalProperties"
        if forbidden:
            self.reader.refuse(where, f"{forbidden[0]!r:.40} is forbidden, but may be one of them")
        if any(re.search(r'[^ -~]|["\\]', name) for name in names):
            self.reader.refuse(where, "a named property is not ASCII, and may be one of them")
        if "propertyNames" not in plain:
            return {"additionalProperties": value}
        if names:
            self._refuse(plain, "propertyNames", "a named property may be one of them")
        keys = self._written(self.reader.strings(plain["propertyNames"]))
        return {"additionalProperties": value} | (
            {"propertyNames": keys} if keys is not False else {}
        )


def _key(sources: tuple[Source, ...]) -> tuple[int, ...]:
    return tuple(id(source.node) for source in sources)


def _marked(schema: dict[str, Any], content: Any) -> dict[str, Any]:
    """`schema`, told apart from those that xgrammar would take for equal."""
    text = json.dumps(content)
    if not any(f'"{key}"' in text for key in _OVERLOOKED):
        return schema
    return schema | {"x-content": hashlib.sha256(text.encode()).hexdigest()}


def _imprecise(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_imprecise, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and not -_INT64 <= value < _INT64
