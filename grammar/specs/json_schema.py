"""Constraints to a JSON value that a schema accepts."""

import copy
import hashlib
import json
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import TypeAdapter

from dlm.grammar.errors import InvalidGrammarError, InvalidValueError, UncheckableError
from dlm.grammar.limits import LimitedCache, TooMuchEffortError, at_most
from dlm.grammar.rules.rules import Rules
from dlm.grammar.schema.dialects import STYLES, Whitespace, json_dialect
from dlm.grammar.schema.documents import MOST_WORK, TooMuchWorkError
from dlm.grammar.schema.evaluate import check, parsed, plain, plain_with_text
from dlm.grammar.schema.objects import PROPERTY_ORDERS, PropertyOrder
from dlm.grammar.schema.writer import write
from dlm.grammar.specs.python_types import (
    adapter,
    is_type,
    schema_of_type,
    type_name,
)
from dlm.grammar.specs.spec import WRITTEN, Spec
from dlm.grammar.vocabulary.pieces import CallMarkers

_OPTIONS: dict[str, tuple[str | None, ...]] = {
    "unenforced": ("refuse", "check"),
    "additional_properties": ("closed", "schema"),
    "whitespace": STYLES,
    "property_order": (*PROPERTY_ORDERS, None),
}
_WRAPPING = {"name", "description", "strict", "schema"}
AT_ONCE = 2_000  # steps of work in the constructor; more are left to `rules`
_TEXT = "_text"  # the attribute with the schema's JSON text, until it is taken
_LARGE = 320  # values in a schema, beyond which all is left to `rules`
EFFORT_AT_ONCE = 15_000  # steps of automata in the constructor, 50 ms; more are left to `rules`
# By `key`, whether the rules of a schema allow more than it does: applications send the same
# schemas again and again, and an accepted one is not written again to see whether it is.
_ACCEPTED = LimitedCache[Hashable, bool](4096)


@dataclass(frozen=True)
class JsonSchema(Spec):
    """A JSON value that a schema accepts.

    `schema` is a parsed schema, its JSON text, or a type that pydantic can read: a model, a
    dataclass, a `TypedDict`, an enumeration, `list[Model]`. It may have OpenAI's wrapping:
    `{"name": ..., "schema": ...}`, or that within `json_schema`. `registry` maps URIs to the other
    documents that a `$ref` may lead to.

    `additional_properties` "closed": an object has only the properties that the schema names,
    unless a keyword allows others. "schema": an object has other properties wherever the
    specification allows them.

    `property_order` "required": required properties come in the schema's order, and optional ones
    anywhere. "schema": all properties that the schema names come in its order, and others after
    them. "any": all come anywhere. None: "required" if `additional_properties` is "closed", else
    "any", as the specification has it. In each of them, no property comes twice.

    `whitespace` is the space between JSON tokens. "compact": none. "pretty": as
    `json.dumps(value, indent=2)` writes it, with a free depth of each line. "any": up to
    `max_whitespace` blanks, then at most one line break, so no line is empty; the next line is
    indented by at most twice as many blanks, or by `max_whitespace` levels of four blanks.

    `unenforced`: a keyword that rules can not express is refused ("refuse"), or left to a check of
    the finished value ("check"). For `unevaluated*`, the properties evaluated by several schemas
    of an `anyOf` are combined for up to five schemas. For six or more, only those of one count.

    `implied_types`: a keyword implies its type, and formats are enforced. Without it, the schema is
    read to the letter: a number fits `{"maxLength": 3}`, and formats are enforced only with
    `formats`.

    Raises `InvalidGrammarError`, here or in `rules`.
    """

    schema: Mapping[str, Any] | bool | str | Any
    max_whitespace: int = 8  # blanks
    unenforced: Literal["refuse", "check"] = "refuse"
    implied_types: bool = True
    registry: Mapping[str, Any] | None = None
    formats: bool | None = None
    additional_properties: Literal["closed", "schema"] = "closed"
    whitespace: Whitespace = "any"
    property_order: PropertyOrder | None = None

    kind = "JSON schema"

    def __post_init__(self) -> None:
        if not isinstance(self.max_whitespace, int) or not 1 <= self.max_whitespace <= 1000:
            reason = f"max_whitespace must be from 1 to 1000, got {self.max_whitespace!r:.40}"
            raise InvalidGrammarError(self.kind, reason)
        for option, choices in _OPTIONS.items():
            if (value := getattr(self, option)) not in choices:
                right = " or ".join(map(repr, choices))
                raise InvalidGrammarError(self.kind, f"{option} must be {right}, got {value!r:.40}")
        if _is_larger(self.parsed, _LARGE):
            return  # `AT_ONCE` would seldom suffice
        inexact = _ACCEPTED.get(self._key)
        if inexact is not None:
            vars(self)["_inexact"] = inexact
            return
        with suppress(TooMuchWorkError, TooMuchEffortError), at_most(EFFORT_AT_ONCE):
            vars(self)[WRITTEN] = self._write(AT_ONCE)
            _ACCEPTED[self._key] = self._inexact

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_adapter", None)
        state.pop(_TEXT, None)
        return state

    @cached_property
    def parsed(self) -> dict[str, Any] | bool:
        """The schema as plain JSON data."""
        if is_type(self.schema):
            return schema_of_type(self.kind, self.schema)
        data, text = plain_with_text(self.kind, self.schema)
        schema = _unwrapped(data)
        if schema is data and not isinstance(self.schema, str):
            vars(self)[_TEXT] = text  # spares `_key` writing it again
        if not isinstance(schema, dict | bool):
            raise InvalidGrammarError(
                self.kind, f"a schema must be an object, true or false, got {schema!r:.40}"
            )
        return schema

    @cached_property
    def _documents(self) -> dict[str, Any]:
        """The registry's documents, as plain JSON data."""
        registry = {} if self.registry is None else self.registry
        if not isinstance(registry, Mapping) or not all(isinstance(uri, str) for uri in registry):
            reason = f"registry must map URIs to documents, got {registry!r:.40}"
            raise InvalidGrammarError(self.kind, reason)
        return {uri: plain(self.kind, document, uri) for uri, document in registry.items()}

    @property
    def checked(self) -> bool:
        """Whether finished values are checked, since the rules allow more than the schema."""
        return self.unenforced == "check" and self._inexact

    @cached_property
    def _inexact(self) -> bool:
        """Whether the rules allow more than the schema does."""
        rules = vars(self)[WRITTEN] = self._write(MOST_WORK)
        return bool(rules.inexact)

    @property
    def source(self) -> dict[str, Any] | bool:
        return self.parsed

    @property
    def key(self) -> Hashable:
        return self._key

    @cached_property
    def _key(self) -> Hashable:
        schema, text = self.parsed, vars(self).pop(_TEXT, None)
        text = (text or json.dumps(schema)) + json.dumps(self._documents)
        return (
            JsonSchema.kind,
            hashlib.sha256(text.encode()).hexdigest(),
            self.max_whitespace if self.whitespace == "any" else 0,
            self.unenforced,
            self.implied_types,
            self._formats,
            self.additional_properties,
            self.whitespace,
            self._property_order,
        )

    @property
    def _property_order(self) -> PropertyOrder:
        closed = self.additional_properties == "closed"
        return self.property_order or ("required" if closed else "any")

    @property
    def _formats(self) -> bool:
        return self.implied_types if self.formats is None else self.formats

    def rules(self, markers: CallMarkers | None = None) -> Rules:
        # The caller may change the rules, so they are written anew for each call after the first.
        return vars(self).pop(WRITTEN, None) or self._write(MOST_WORK)

    @property
    def portable(self) -> "JsonSchema":
        if not is_type(self.schema):
            return self
        other = copy.copy(self)
        vars(other).pop("_adapter", None)
        vars(other)["schema"] = self.parsed
        return other

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return adapter(self.kind, self.schema)

    def _write(self, most_work: int) -> Rules:
        rules = Rules()
        written = write(
            self.parsed,
            dialect=json_dialect(self.max_whitespace, self.whitespace),
            rules=rules,
            unenforced=self.unenforced,
            implied_types=self.implied_types,
            formats=self._formats,
            registry=self._documents,
            closed=self.additional_properties == "closed",
            property_order=self._property_order,
            most_work=most_work,
            whole=True,
        )
        rules.nodes[rules.root] = written.node
        rules.inexact = written.inexact
        rules.free_keys, rules.few_keys = written.free_keys, written.few_keys
        vars(self)["_inexact"] = bool(written.inexact)
        return rules

    def value(self, text: str) -> Any:
        """Return the JSON value of `text`.

        None if Python can not hold it: an integer of 4,301 digits, a thousand nested arrays. Raises
        `InvalidValueError` if the text is not JSON, or if the schema refuses it.
        """
        value = None
        try:
            value = parsed(text)
            check(value, self.parsed, self._documents, formats=self._formats)
        except UncheckableError as error:
            if self.checked:
                raise InvalidValueError(str(error)) from error
        return value

    def instance(self, value: Any, text: str) -> Any:
        """Return an instance of the type if one was given as the schema, else `value`."""
        if not is_type(self.schema):
            return value
        if value is None and not _is_null(text):
            return None  # beyond Python's limits
        try:
            return self._adapter.validate_json(text)
        except ValueError as error:
            reason = f"it fits the schema, and {type_name(self.schema)} refuses it: {error}"
            raise InvalidValueError(reason[:500]) from error


def _is_null(text: str) -> bool:
    return text.strip() == "null"


def _is_larger(schema: Any, most: int) -> bool:
    """Whether a schema holds more than `most` JSON values, itself included."""
    count, waiting = 0, [schema]
    while waiting and count <= most:
        value = waiting.pop()
        count += 1
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return count > most


def _unwrapped(schema: Any) -> Any:
    """Return the schema within OpenAI's wrapping, or `schema` itself if it is not wrapped."""
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "json_schema":
        inner = schema.get("json_schema", {name: schema[name] for name in schema.keys() - {"type"}})
        return _unwrapped(inner) if isinstance(inner, dict) else schema
    if "schema" in schema and schema.keys() <= _WRAPPING:
        return schema["schema"]
    return schema


class JsonObject(JsonSchema):
    """A JSON object with any members.

    `max_whitespace` and `whitespace` mean the same as in `JsonSchema`.
    """

    kind = "JSON object"

    def __init__(self, max_whitespace: int = 8, whitespace: Whitespace = "any"):
        super().__init__({"type": "object"}, max_whitespace, whitespace=whitespace)
