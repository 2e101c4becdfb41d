"""What a user may ask the output to be: any JSON object. Knows JSON only through `JsonSchema`."""

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dlm.grammar.kinds.json_schema import JsonSchema
from dlm.grammar.kinds.spec import Spec
from dlm.grammar.rules.rules import Rules
from dlm.grammar.schema.whitespace import Whitespace

if TYPE_CHECKING:
    from dlm.grammar.markers import CallMarkers


@dataclass(frozen=True)
class JsonObject(Spec):
    """A JSON object with any members. `max_whitespace` and `whitespace` are as in `JsonSchema`."""

    max_whitespace: int = 8  # blanks
    whitespace: Whitespace = "any"

    kind = "JSON object"

    def __post_init__(self) -> None:
        self._schema  # noqa: B018  # it checks max_whitespace

    @cached_property
    def _schema(self) -> JsonSchema:
        return JsonSchema({"type": "object"}, self.max_whitespace, whitespace=self.whitespace)

    @property
    def source(self) -> None:
        return None

    @property
    def key(self) -> Hashable:
        return self._schema.key

    def rules(self, markers: "CallMarkers | None") -> Rules:
        return self._schema.rules(markers)

    def value(self, text: str) -> Any:
        return self._schema.value(text)
