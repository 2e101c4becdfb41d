"""Specs whose grammar is wider than they are, and specs that break; workers import them."""

import json
import os
import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator, exceptions

from dlm.grammar import InvalidGrammarError, InvalidValueError, JsonSchema, Spec
from dlm.grammar.rules import Rules


@dataclass(frozen=True)
class Checked(Spec):
    """JSON of the grammar that `wide` has; only what `narrow` accepts is an answer."""

    wide: dict[str, Any]
    narrow: dict[str, Any]

    kind = JsonSchema.kind  # which policies serve

    @property
    def key(self) -> Hashable:
        return "checked", json.dumps([self.wide, self.narrow])

    @property
    def source(self) -> dict[str, Any]:
        return self.narrow

    @property
    def checked(self) -> bool:
        return True

    def rules(self, markers: Any) -> Rules:
        return JsonSchema(self.wide, max_whitespace=1).rules(markers)

    def value(self, text: str) -> Any:
        value = json.loads(text)
        problem = exceptions.best_match(Draft202012Validator(self.narrow).iter_errors(value))
        if problem is not None:
            raise InvalidValueError(problem.message, list(problem.absolute_path))
        return value


def wider(schema: Any) -> Any:
    """`schema` without the keywords that `Checked` leaves to the check."""
    if isinstance(schema, list):
        return [wider(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {k: v for k, v in schema.items() if k not in ("uniqueItems", "multipleOf", "not")}
    if "oneOf" in kept:
        kept["anyOf"] = kept.pop("oneOf")
    return {key: wider(value) for key, value in kept.items()}


def checked(schema: dict[str, Any]) -> Checked:
    return Checked(wider(schema), schema)


@dataclass(frozen=True)
class Broken(Spec):
    """The text "ok", but for what goes wrong in one `part` of it: "rules", "value", "key", ..."""

    part: str
    fault: str = "OverflowError"
    only_at_the_end: bool = False  # `value` runs apart from the engine

    kind = "broken"

    def _break(self, part: str) -> None:
        if part != self.part:
            return
        match self.fault:
            case "OverflowError":
                raise OverflowError("too far")
            case "MemoryError":
                raise MemoryError
            case "RecursionError":
                self._break(part)
            case "InvalidGrammarError":
                raise InvalidGrammarError(self.kind, "it is no good")
            case "sleep":
                time.sleep(3600)
            case "spin":
                while True:
                    pass
            case "leave":
                os._exit(3)

    @property
    def key(self) -> Hashable:
        self._break("key")
        return self.kind, self.part, self.fault, self.only_at_the_end

    @property
    def source(self) -> str:
        self._break("source")
        return "ok"

    @property
    def calls(self) -> bool:
        self._break("calls")
        return False

    @property
    def checked(self) -> bool:
        self._break("checked")
        return self.only_at_the_end

    def rules(self, markers: Any) -> Rules:
        self._break("rules")
        return JsonSchema({"const": "ok"}).rules(markers)

    def value(self, text: str) -> str:
        self._break("value")
        return text
