"""Form of an answer's text: the fields for it, OpenAI's and vLLM's, and the spec that they ask for.

`json_schema_spec` and `FormatOptions` are for bodies that have a schema in another place. This
module knows no tools.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pydantic import Field

from dlm.errors import RequestError
from dlm.grammar import (
    Choice,
    Grammar,
    InvalidGrammarError,
    JsonObject,
    JsonSchema,
    Regex,
    Spec,
    StructuralTag,
)
from dlm.grammar.schema import PropertyOrder
from dlm.openai.body import JsonModel, Object, refused_name, validated, wrong
from dlm.openai.formats import (
    FlatFormat,
    JsonFormat,
    SchemaWrapper,
    StructuredOutputs,
    TextFormat,
    WrappedFormat,
)
from dlm.openai.other_fields import OUTPUT_KINDS
from dlm.policy import Policy

_KEYWORDS = frozenset(  # every schema that constrains anything has one of these
    """type properties required additionalProperties patternProperties items prefixItems enum const
    anyOf allOf oneOf not if $ref $defs definitions $schema""".split()
)
_EBNF = re.compile(r"^[ \t]*root[ \t]*::=", re.MULTILINE)
_LARK = re.compile(r"^[ \t]*[?!]*start(?:\.\d+)?[ \t]*:(?!:=)", re.MULTILINE)


class FormatOptions(JsonModel):
    """Object with the field `format`, beside which a schema would be lost."""

    place: ClassVar[str]  # path of the object in its body

    @classmethod
    def check_names(cls, values: Mapping[str, Any]) -> None:
        for name in ("schema", "json_schema", "type"):
            if name in values:
                raise refused_name(name, f"is unknown: use {cls.place}.format.{name}")


class FormatFields(JsonModel):
    """Fields of a body about the form of its answer."""

    response_format: Object | None = Field(
        None,
        description='`text`, `json_object`, `json_schema`, `structural_tag`; a schema also as \
`{"type": "json_object", "schema": S}`, `{"type": "json_schema", "schema": S}` or without the \
wrapper, `"json_schema": S`. With `strict` true, a keyword that a grammar cannot enforce is a 400; \
otherwise the finished value is checked and mended',
    )
    structured_outputs: StructuredOutputs | None = Field(
        None,
        description="vLLM's: `json`, `regex`, `choice`, `grammar` (EBNF or Lark), `json_object`, \
`structural_tag`; beside them `disable_any_whitespace` (compact JSON), and \
`disable_additional_properties`: absent or true: objects have the properties that the schema \
names; false: others too where the specification allows them. `property_order`: `required` (the \
default), required properties in the schema's order and others anywhere; `schema`, all in the \
schema's order; `any`, all anywhere. Alone, it is that of `response_format` and of `tools`. \
`whitespace_pattern` is a 400",
    )

    @property
    def property_order(self) -> PropertyOrder | None:
        return order_of(self.structured_outputs)

    def content_spec(self, policy: Policy, tools: bool = False) -> Spec | None:
        """Return the spec of an answer's text; None for free text. Raises `RequestError`.

        `tools`: there are tools, too.
        """
        format, order = self.response_format, self.property_order
        others = tools or format is not None
        formats = {
            "response_format": _response_format(format, policy, order),
            "structured_outputs": outputs_spec(self.structured_outputs, policy, others),
        }
        constraints = {field: spec for field, spec in formats.items() if spec is not None}
        if len(constraints) > 1:
            raise RequestError(
                f"{' and '.join(constraints)} each constrain the answer: send one of them"
            )
        return next(iter(constraints.values()), None)


def _response_format(
    format: dict[str, Any] | None, policy: Policy, order: PropertyOrder | None
) -> Spec | None:
    if format is None:
        return None
    field = "response_format"
    match format.get("type"):
        case "text":
            validated(TextFormat.model_validate, format, field)
            return None
        case "json_object" | "json":
            schema = validated(JsonFormat.model_validate, format, field).source
            if schema is not None:
                return json_schema_spec(f"{field}.schema", schema, policy, lax=True, order=order)
            return json_object_spec(field, policy)
        case "json_schema":
            return _json_schema(field, format, policy, order)
        case "structural_tag":
            return _structural_tag(field, format, policy, order)
        case other:
            hint = f" ({other} goes to structured_outputs.{other})" if other in OUTPUT_KINDS else ""
            if not _KEYWORDS.isdisjoint(format.keys() - {"type"}):
                hint = " (a schema goes to json_schema.schema beside the type json_schema)"
            right = f"text, json_object, json_schema or structural_tag{hint}"
            raise wrong(f"{field}.type", other, right)


def _json_schema(
    field: str, format: Mapping[str, Any], policy: Policy, order: PropertyOrder | None
) -> Spec:
    """Read a schema in OpenAI's wrapper, `{"json_schema": {"schema": ...}}`. As on other servers,
    the wrapper's fields may stand beside `type`, and `json_schema` may be the schema itself."""
    if format.get("json_schema") is None and format.get("schema") is not None:
        wrapper = validated(FlatFormat.model_validate, format, field)
    else:
        data = validated(WrappedFormat.model_validate, format, field).json_schema
        field = f"{field}.json_schema"
        if "schema" not in data and not _KEYWORDS.isdisjoint(data):
            lax = data.get("strict") is not True
            return json_schema_spec(field, data, policy, lax=lax, order=order)
        wrapper = validated(SchemaWrapper.model_validate, data, field)
    field = f"{field}.schema"
    if wrapper.source is None:
        raise wrong(field, None, "a JSON schema")
    lax = wrapper.strict is not True
    return json_schema_spec(field, wrapper.source, policy, lax=lax, order=order)


def order_of(outputs: StructuredOutputs | None) -> PropertyOrder | None:
    """Return the order of properties that `structured_outputs` asks for."""
    return None if outputs is None else outputs.property_order


def outputs_spec(
    outputs: StructuredOutputs | None, policy: Policy, others: bool = False
) -> Spec | None:
    """Return the spec of the field `structured_outputs`. Raises `RequestError`.

    None if it only has the order of properties for `others`: constraints in other fields.
    """
    if outputs is None:
        return None
    field = "structured_outputs"
    kinds: dict[str, Any] = {
        "json": outputs.json_,
        "regex": outputs.regex,
        "choice": outputs.choice,
        "grammar": outputs.grammar,
        "structural_tag": outputs.structural_tag,
        "json_object": outputs.json_object,
    }
    chosen = {name: value for name, value in kinds.items() if value is not None}
    flags = outputs.disable_any_whitespace, outputs.disable_additional_properties
    if others and not chosen and outputs.property_order and flags == (None, None):
        return None
    if len(chosen) != 1:
        got = " and ".join(chosen) or "none"
        raise RequestError(f"{field} must have exactly one of {', '.join(kinds)}, got {got}")
    ((name, value),) = chosen.items()
    field, compact = f"{field}.{name}", outputs.disable_any_whitespace is True
    match name:
        case "json":
            opened = outputs.disable_additional_properties is False
            order = outputs.property_order
            return json_schema_spec(
                field, value, policy, compact=compact, opened=opened, order=order
            )
        case "json_object":
            return json_object_spec(field, policy, compact)
        case "regex":
            return make_spec(field, policy, Regex.kind, value, lambda: Regex(value))
        case "choice":
            return make_spec(field, policy, Choice.kind, value, lambda: Choice(value))
        case "grammar":
            return _grammar(field, value, policy)
    return _structural_tag(field, value, policy, outputs.property_order)


def json_schema_spec(
    field: str,
    value: str | dict[str, Any],
    policy: Policy,
    lax: bool = False,
    *,
    compact: bool = False,
    opened: bool = False,
    order: PropertyOrder | None = None,
) -> Spec:
    """Return the spec of a schema in `field`. Raises `RequestError`.

    With `lax`, keywords that no grammar can enforce are checked at the end rather than refused.
    `compact` JSON has no whitespace. With `opened`, objects may have additional properties if the
    schema allows them.
    """
    if isinstance(value, dict) and isinstance(value.get("schema"), dict):
        # OpenAI's wrapper, which as a schema would constrain nothing.
        value = value["schema"] if value.keys() <= set(SchemaWrapper.names()) else value

    def make() -> Spec:
        schema = json.loads(value) if isinstance(value, str) else value
        if isinstance(schema, dict) and not isinstance(schema.get("$schema", ""), str):
            raise wrong("$schema", schema["$schema"], "a URI")
        return JsonSchema(
            value,
            unenforced="check" if lax else "refuse",
            additional_properties="schema" if opened else "closed",
            whitespace="compact" if compact else "any",
            property_order=order,
        )

    return make_spec(field, policy, JsonSchema.kind, value, make)


def json_object_spec(field: str, policy: Policy, compact: bool = False) -> Spec:
    """Return the spec of any JSON object, for `field`. Raises `RequestError`."""

    def make() -> Spec:
        return JsonObject(whitespace="compact" if compact else "any")

    return make_spec(field, policy, JsonObject.kind, None, make)


def _grammar(field: str, rules: str, policy: Policy) -> Spec:
    ebnf, lark = (bool(form.search(rules)) for form in (_EBNF, _LARK))
    if ebnf is lark:
        sent = "both" if ebnf else "neither"
        raise RequestError(
            f"{field} must be EBNF with a rule `root ::= ...`, or Lark with a rule `start: ...`, "
            f"got {sent}"
        )
    syntax = "ebnf" if ebnf else "lark"
    return make_spec(field, policy, Grammar.kind, rules, lambda: Grammar(rules, syntax))


def _structural_tag(
    field: str, value: str | dict[str, Any], policy: Policy, order: PropertyOrder | None
) -> Spec:
    if not value:
        raise wrong(field, value, "a structural tag")

    def make() -> Spec:
        return StructuralTag(value, order or "required")

    return make_spec(field, policy, StructuralTag.kind, value, make)


def make_spec(field: str, policy: Policy, kind: str, source: Any, make: Callable[[], Spec]) -> Spec:
    """Return the spec that `make` builds from `source`. Raises `RequestError` if the policy does
    not admit it, or if it is no valid spec."""
    try:
        policy.admit(kind, source)
        return make()
    except (InvalidGrammarError, RequestError) as error:
        raise RequestError(f"{field}: {error}") from error
    except RecursionError as error:
        raise RequestError(f"{field}: nested too deep") from error
