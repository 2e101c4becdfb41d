"""Constraints to JSON: a value of a schema, or any object."""

import hashlib
import json
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel

from dlm.grammar.errors import InvalidGrammarError, InvalidValueError, UncheckableError
from dlm.grammar.json_text import parsed, plain
from dlm.grammar.limits import TooMuchEffortError, at_most
from dlm.grammar.rules.rules import Rules
from dlm.grammar.schema.dialect import STYLES, Dialect, Whitespace
from dlm.grammar.schema.documents import MOST_WORK, TooMuchWorkError
from dlm.grammar.schema.evaluate import check
from dlm.grammar.schema.writer import write
from dlm.grammar.specs.spec import Spec
from dlm.grammar.tokens import CallMarkers

_OPTIONS: dict[str, tuple[str, ...]] = {
    "unenforced": ("refuse", "check"),
    "additional_properties": ("closed", "schema"),
    "whitespace": STYLES,
}
_WRAPPING = {"name", "description", "strict", "schema"}
_WRITTEN = "_rules"  # the attribute that holds the rules until they are taken
_AT_ONCE = 2_000  # steps of work in the constructor; more are left to `rules`
_EFFORT_AT_ONCE = 15_000  # steps of automata in the constructor, 50 ms; more are left to `rules`


@dataclass(frozen=True)
class JsonSchema(Spec):
    """A JSON value that a schema accepts.

    `schema` is a parsed schema, its JSON text, or a pydantic model. It may have OpenAI's wrapping:
    `{"name": ..., "schema": ...}`, or that within `json_schema`. `registry` maps URIs to the other
    documents that a `$ref` may lead to.

    `additional_properties` "closed": an object has only the properties that the schema names,
    unless a keyword allows others. Properties come in the schema's order. "schema": an object has
    other properties wherever the specification allows them, and further orders of properties are
    allowed (docs/conformance.md).

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

    schema: Mapping[str, Any] | bool | str | type[BaseModel]
    max_whitespace: int = 8  # blanks
    unenforced: Literal["refuse", "check"] = "refuse"
    implied_types: bool = True
    registry: Mapping[str, Any] | None = None
    formats: bool | None = None
    additional_properties: Literal["closed", "schema"] = "closed"
    whitespace: Whitespace = "any"

    kind = "JSON schema"

    def __post_init__(self) -> None:
        if not isinstance(self.max_whitespace, int) or not 1 <= self.max_whitespace <= 1000:
            reason = f"max_whitespace is {self.max_whitespace!r:.40}, not from 1 to 1000"
            raise InvalidGrammarError(self.kind, reason)
        for option, known in _OPTIONS.items():
            if (given := getattr(self, option)) not in known:
                right = " or ".join(map(repr, known))
                raise InvalidGrammarError(self.kind, f"{option} is {given!r:.40}, not {right}")
        with suppress(TooMuchWorkError, TooMuchEffortError), at_most(_EFFORT_AT_ONCE):
            vars(self)[_WRITTEN] = self._write(_AT_ONCE)

    def __getstate__(self) -> dict[str, Any]:
        return {name: part for name, part in vars(self).items() if name != _WRITTEN}

    @cached_property
    def parsed(self) -> dict[str, Any] | bool:
        """The schema as plain JSON data."""
        if isinstance(self.schema, type) and issubclass(self.schema, BaseModel):
            return self.schema.model_json_schema()
        read = _unwrapped(plain(self.kind, self.schema))
        if not isinstance(read, dict | bool):
            raise InvalidGrammarError(self.kind, f"a schema is an object, not {read!r:.40}")
        return read

    @cached_property
    def _documents(self) -> dict[str, Any]:
        """The registry's documents, as plain JSON data."""
        given = {} if self.registry is None else self.registry
        if not isinstance(given, Mapping) or not all(isinstance(uri, str) for uri in given):
            reason = f"a registry has documents by their URIs, not {given!r:.40}"
            raise InvalidGrammarError(self.kind, reason)
        return {uri: plain(self.kind, one, uri) for uri, one in given.items()}

    @property
    def checked(self) -> bool:
        """Whether finished values are checked, since the rules allow more than the schema."""
        return self.unenforced == "check" and self._inexact

    @cached_property
    def _inexact(self) -> bool:
        """Whether the rules allow more than the schema does."""
        rules = vars(self)[_WRITTEN] = self._write(MOST_WORK)
        return bool(rules.inexact)

    @property
    def source(self) -> dict[str, Any] | bool:
        return self.parsed

    @property
    def key(self) -> Hashable:
        return self._key

    @cached_property
    def _key(self) -> Hashable:
        read = json.dumps([self.parsed, self._documents])
        return (
            self.kind,
            hashlib.sha256(read.encode()).hexdigest(),
            self.max_whitespace if self.whitespace == "any" else 0,
            self.unenforced,
            self.implied_types,
            self._formats,
            self.additional_properties,
            self.whitespace,
        )

    @property
    def _formats(self) -> bool:
        return self.implied_types if self.formats is None else self.formats

    def rules(self, markers: CallMarkers | None = None) -> Rules:
        # The caller may change the rules, so they are written anew for each call after the first.
        return vars(self).pop(_WRITTEN, None) or self._write(MOST_WORK)

    def _write(self, most_work: int) -> Rules:
        rules = Rules()
        written = write(
            self.parsed,
            dialect=Dialect(self.max_whitespace, whitespace=self.whitespace),
            rules=rules,
            unenforced=self.unenforced,
            implied_types=self.implied_types,
            formats=self._formats,
            registry=self._documents,
            closed=self.additional_properties == "closed",
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
        """Return an instance of the pydantic model if one was given, else `value`."""
        if value is None or not isinstance(self.schema, type):
            return value
        try:
            return self.schema.model_validate_json(text)
        except ValueError as error:
            reason = f"it fits the schema, and {self.schema.__name__} refuses it: {error}"
            raise InvalidValueError(reason[:500]) from error


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


@dataclass(frozen=True)
class JsonObject(Spec):
    """A JSON object with any members.

    `max_whitespace` and `whitespace` mean the same as in `JsonSchema`.
    """

    max_whitespace: int = 8  # blanks
    whitespace: Whitespace = "any"

    kind = "JSON object"

    def __post_init__(self) -> None:
        self._schema  # noqa: B018  # checks the options

    @cached_property
    def _schema(self) -> JsonSchema:
        return JsonSchema({"type": "object"}, self.max_whitespace, whitespace=self.whitespace)

    @property
    def source(self) -> None:
        return None

    @property
    def key(self) -> Hashable:
        return self._schema.key

    def rules(self, markers: CallMarkers | None) -> Rules:
        return self._schema.rules(markers)

    def value(self, text: str) -> Any:
        return self._schema.value(text)
