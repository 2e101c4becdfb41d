"""Forms of schemas in a body: OpenAI's wrapper, and vLLM's `structured_outputs`."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from dlm.grammar.schema import PropertyOrder
from dlm.openai.body import REQUIRED, ClosedModel, Object, Several, Takes, Words

Schema = Annotated[Words | Object, Takes("a JSON schema (json_object is for any object)")]
Tag = Annotated[Words | Object, Takes("a structural tag")]


class SchemaWrapper(ClosedModel):
    """OpenAI's object around a schema."""

    name: str | None = None
    description: str | None = None
    source: Schema | None = Field(None, alias="schema")
    strict: bool | None = None


class FlatFormat(SchemaWrapper):
    """`response_format` with the wrapper's fields beside its type."""

    type: Any = None


class WrappedFormat(ClosedModel):
    """`response_format` with a wrapper, or with a schema instead of it."""

    type: Any = None
    json_schema: Object = REQUIRED


class TextFormat(ClosedModel):
    type: Any = None


Order = Annotated[PropertyOrder, Takes("required, schema or any")]


class JsonFormat(ClosedModel):
    """`response_format` for any JSON object, or with a schema, as other servers have it."""

    type: Any = None
    source: Schema | None = Field(None, alias="schema")


class StructuredOutputs(ClosedModel):
    """vLLM's constraints, of which a body has one."""

    json_: Schema | None = Field(None, alias="json")
    regex: Annotated[Words, Takes("a regex as text")] | None = None
    choice: Several[str] | None = None
    grammar: Annotated[Words, Takes("a grammar as text")] | None = None
    json_object: Annotated[Literal[True], Takes("true")] | None = None
    structural_tag: Tag | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None  # None is True
    property_order: Order | None = None
    disable_fallback: bool | None = None

    refused: ClassVar[Mapping[str, str]] = {
        "whitespace_pattern": "whitespace is free, or left out with disable_any_whitespace",
    }
