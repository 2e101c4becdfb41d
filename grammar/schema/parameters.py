"""The JSON schema of a tool's arguments, checked, with the questions that one asks of a schema.

Knows nothing of grammars or of how a call is written.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from jsonschema import exceptions, validators
from referencing import Registry
from referencing.exceptions import Unresolvable

from dlm.grammar.errors import InvalidGrammarError, InvalidValueError
from dlm.grammar.schema.pointer import pointer

KINDS = ("object", "array", "string", "number", "boolean", "null")
_NEWEST = "https://json-schema.org/draft/2020-12/schema"
_DIALECTS = (
    _NEWEST,
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
)


class Parameters:
    """The JSON schema `schema` at the JSON pointer `where`.

    OpenAPI's `nullable` is read as a `null` beside the type. Raises `InvalidGrammarError` for what
    is no schema of an object.
    """

    kind = "tools"

    def __init__(self, schema: Any, where: str):
        self.where = where
        if not isinstance(schema, dict):
            raise self.error(f"a schema is an object, not {schema!r:.40}", where)
        self.schema: dict[str, Any] = _spelled_out(schema)
        dialect = schema.get("$schema", _NEWEST)
        if not isinstance(dialect, str) or dialect.rstrip("#") not in _DIALECTS:
            raise self.error(f"{dialect!r:.80} is no draft from 6 to 2020-12", f"{where}/$schema")
        self.newest = dialect == _NEWEST
        try:
            validators.validator_for(self.schema).check_schema(self.schema)
        except exceptions.SchemaError as error:
            raise self.error(error.message, where + pointer(*error.absolute_path)) from error
        elsewhere = {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"}
        if elsewhere.isdisjoint(self.schema):
            self.schema["type"] = "object"
        for leaf, place in self.leaves(self.schema, where):
            if self.schema.get("type") != "object" and self.kinds(leaf) != {"object"}:
                raise self.error("the arguments of a tool are an object", place)

    def error(self, reason: str, where: str) -> InvalidGrammarError:
        return InvalidGrammarError(self.kind, reason, where)

    @cached_property
    def _validator(self) -> Any:
        return validators.validator_for(self.schema)(self.schema, registry=Registry())

    def check(self, arguments: Any) -> None:
        """Raises `InvalidValueError` for what the schema refuses."""
        try:
            problem = exceptions.best_match(self._validator.iter_errors(arguments))
        except (Unresolvable, RecursionError) as error:
            raise InvalidValueError(f"the arguments cannot be checked: {error}") from error
        if problem is not None:
            raise InvalidValueError(
                f"the arguments do not fit the schema at {problem.json_path}: "
                f"{problem.message:.200}"
            )

    def accepts(self, schema: Any, value: Any) -> bool:
        """Whether `schema`, a part of this one, accepts `value`."""
        try:
            return self._validator.evolve(schema=schema).is_valid(value)
        except (Unresolvable, RecursionError) as error:
            raise self.error(f"a value cannot be checked: {error}", self.where) from error

    def property(self, name: str) -> Any:
        """The schema of an argument; True where none is given."""
        for leaf, _ in self.leaves(self.schema, self.where):
            if name in leaf.get("properties", {}):
                return leaf["properties"][name]
        return True

    def resolve(self, ref: str, where: str) -> Any:
        """The part of this schema that the `$ref` at `where` names."""
        if ref != "#" and not ref.startswith("#/"):
            raise self.error("a reference begins with #/: it stays within its schema", where)
        part: Any = self.schema
        for key in ref.split("/")[1:]:
            key = unquote(key).replace("~1", "/").replace("~0", "~")
            try:
                part = part[int(key) if isinstance(part, list) else key]
            except (LookupError, TypeError, ValueError) as error:
                raise self.error(f"{ref!r:.80} leads nowhere", where) from error
        return part

    def values(self, schema: Any) -> list[Any] | None:
        """All that the schema accepts, where it lists its values."""
        if not isinstance(schema, dict) or schema.keys().isdisjoint({"const", "enum"}):
            return None
        listed = [schema["const"]] if "const" in schema else schema["enum"]
        return [value for value in listed if self.accepts(schema, value)]

    def kinds(self, schema: Any) -> set[str]:
        """The types of what the schema may accept; `number` stands for integers too."""
        if not isinstance(schema, dict):
            return set(KINDS) if schema else set()
        if (values := self.values(schema)) is not None:
            return {_kind(value) for value in values}
        named = schema.get("type", KINDS)
        named = [named] if isinstance(named, str) else named
        return {"number" if kind == "integer" else kind for kind in named}

    def leaves(
        self, schema: Any, where: str, seen: frozenset[str] = frozenset()
    ) -> Iterator[tuple[Any, str]]:
        """The alternatives of which the schema is made, with their pointers."""
        if isinstance(schema, dict) and "$ref" in schema:
            ref = schema["$ref"]
            if ref not in seen:
                target = self.resolve(ref, f"{where}/$ref")
                yield from self.leaves(target, self.where + ref[1:], seen | {ref})
        elif isinstance(schema, dict) and (
            word := next((w for w in ("anyOf", "oneOf", "allOf") if w in schema), None)
        ):
            for i, branch in enumerate(schema[word]):
                yield from self.leaves(branch, f"{where}/{word}/{i}", seen)
        else:
            yield schema, where

    def apart(self, one: Any, other: Any) -> bool:
        """It is certain that no value fits both schemas."""
        ours = [leaf for leaf, _ in self.leaves(one, self.where)]
        theirs = [leaf for leaf, _ in self.leaves(other, self.where)]
        return all(self._apart(a, b) for a in ours for b in theirs)

    def _apart(self, one: Any, other: Any) -> bool:
        if (values := self.values(one)) is not None:
            return not any(self.accepts(other, value) for value in values)
        if (values := self.values(other)) is not None:
            return not any(self.accepts(one, value) for value in values)
        common = self.kinds(one) & self.kinds(other)
        return not common or (common == {"object"} and self._told_apart(one, other))

    def _told_apart(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        """By a property that one of them requires."""
        ours, theirs = one.get("properties", {}), other.get("properties", {})
        required = {*one.get("required", ()), *other.get("required", ())}
        return any(
            key in required
            and (values := self.values(ours[key])) is not None
            and not any(self.accepts(theirs[key], value) for value in values)
            for key in ours.keys() & theirs.keys()
        )


def _kind(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _spelled_out(schema: Any) -> Any:
    """A copy in which `nullable` is the type that it means."""
    if isinstance(schema, list):
        return [_spelled_out(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {
        key: part if key == "const" or (key == "enum" and isinstance(part, list))
        else _spelled_out(part)
        for key, part in schema.items()
    }  # fmt: skip
    if copy.get("nullable") is True and isinstance(copy.get("type"), str):
        copy["type"] = [copy["type"], "null"]
    return copy
