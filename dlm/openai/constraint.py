"""Reader of the constraint in a body: from OpenAI's fields, and vLLM's.

`FormatFields` has the fields about an answer's text, `ToolFields` those about tools, and
`ConstraintFields` all of a chat. `json_schema_spec`, `FormatOptions` and `tools_spec` are for forms
of requests that have a schema or tools in another place: they make tools in the form of a chat, and
a `ToolChoice`.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

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
    Tools,
)
from dlm.grammar.schema import PropertyOrder
from dlm.grammar.specs.tool_forms import input_spec
from dlm.openai.body import (
    REQUIRED,
    ByField,
    Each,
    JsonModel,
    Object,
    Several,
    Shaped,
    Takes,
    Words,
    having,
    refused_name,
    shown,
    validated,
    wrong,
)
from dlm.openai.formats import (
    FlatFormat,
    JsonFormat,
    SchemaWrapper,
    StructuredOutputs,
    TextFormat,
    WrappedFormat,
)
from dlm.openai.other_fields import OUTPUT_KINDS, check_old
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
            return _make_spec(field, policy, Regex.kind, value, lambda: Regex(value))
        case "choice":
            return _make_spec(field, policy, Choice.kind, value, lambda: Choice(value))
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

    return _make_spec(field, policy, JsonSchema.kind, value, make)


def json_object_spec(field: str, policy: Policy, compact: bool = False) -> Spec:
    """Return the spec of any JSON object, for `field`. Raises `RequestError`."""

    def make() -> Spec:
        return JsonObject(whitespace="compact" if compact else "any")

    return _make_spec(field, policy, JsonObject.kind, None, make)


def _grammar(field: str, rules: str, policy: Policy) -> Spec:
    ebnf, lark = (bool(form.search(rules)) for form in (_EBNF, _LARK))
    if ebnf is lark:
        sent = "both" if ebnf else "neither"
        raise RequestError(
            f"{field} must be EBNF with a rule `root ::= ...`, or Lark with a rule `start: ...`, "
            f"got {sent}"
        )
    syntax = "ebnf" if ebnf else "lark"
    return _make_spec(field, policy, Grammar.kind, rules, lambda: Grammar(rules, syntax))


def _structural_tag(
    field: str, value: str | dict[str, Any], policy: Policy, order: PropertyOrder | None
) -> Spec:
    if not value:
        raise wrong(field, value, "a structural tag")

    def make() -> Spec:
        return StructuralTag(value, order or "required")

    return _make_spec(field, policy, StructuralTag.kind, value, make)


def _make_spec(
    field: str, policy: Policy, kind: str, source: Any, make: Callable[[], Spec]
) -> Spec:
    """Return the spec that `make` builds from `source`. Raises `RequestError` if the policy does
    not admit it, or if it is no valid spec."""
    try:
        policy.admit(kind, source)
        return make()
    except (InvalidGrammarError, RequestError) as error:
        raise RequestError(f"{field}: {error}") from error
    except RecursionError as error:
        raise RequestError(f"{field}: nested too deep") from error


class FunctionForm(JsonModel):
    """Function of a tool. `Tools` checks its name and its schema."""

    name: Annotated[Words, Takes("the name of a tool")] = REQUIRED
    description: str | None = None
    parameters: Object | None = None
    strict: bool | None = None


class FunctionTool(JsonModel):
    """Tool in the form of a chat."""

    type: Literal["function"] = REQUIRED
    function: FunctionForm = REQUIRED


class CustomForm(JsonModel):
    """Tool that takes a text. `Tools` checks its name and the grammar of the text."""

    name: Annotated[Words, Takes("the name of a tool")] = REQUIRED
    description: str | None = None
    format: Object | None = None


class CustomTool(JsonModel):
    type: Literal["custom"] = REQUIRED
    custom: CustomForm = REQUIRED


class ToolName(JsonModel):
    name: str = REQUIRED


class NamedFunction(JsonModel):
    """`tool_choice` for one tool that must be called, or one of the allowed tools."""

    type: Literal["function"] = REQUIRED
    function: ToolName = REQUIRED

    @property
    def name(self) -> str:
        return self.function.name


class NamedCustom(JsonModel):
    type: Literal["custom"] = REQUIRED
    custom: ToolName = REQUIRED

    @property
    def name(self) -> str:
        return self.custom.name


ToolForm = Annotated[FunctionTool | CustomTool, ByField("type")]
AllowedTool = Annotated[
    Annotated[NamedFunction | NamedCustom, ByField("type")], having("type", "function")
]


class AllowedTools(JsonModel):
    mode: Literal["auto", "required"] = REQUIRED
    tools: Several[AllowedTool] = REQUIRED


class AllowedChoice(JsonModel):
    """`tool_choice` for some of the tools."""

    type: Literal["allowed_tools"] = REQUIRED
    allowed_tools: AllowedTools = REQUIRED


_MODE = Literal["none", "auto", "required"]
_CHOICE = """none, auto, required, {"type": "function", "function": {"name": ...}} or \
{"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}"""
ToolList = Each[Annotated[Object, Shaped(ToolForm)]]

_TOOLS = """none, auto, required, a named tool, `allowed_tools`; an empty list means no tools. \
A `response_format` beside them is the form of an answer without calls. Without `strict`, \
keywords of a tool's parameters that rules cannot express are checked once the arguments are \
finished, and arguments that do not fit are written again; a stream sends such calls once they \
are checked. With `strict` true it is a 400. A tool whose parameters do not say what they hold \
(`{}`, `{"type": "object"}`) takes none"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """Tools that may or must be called."""

    mode: Literal["none", "auto", "required"] = "auto"
    named: str | None = None  # the one tool that must be called
    allowed: tuple[str, ...] | None = None  # tools that may be called; None: all


class ToolFields(JsonModel):
    """Fields of a body about tools."""

    tools: ToolList | None = Field(None, description=_TOOLS)
    tool_choice: (
        Annotated[
            _MODE | Annotated[NamedFunction | NamedCustom | AllowedChoice, ByField("type")],
            Takes(_CHOICE),
        ]
        | None
    ) = Field(None, description=_TOOLS)
    parallel_tool_calls: bool | None = Field(None, description=_TOOLS)

    @property
    def choice(self) -> ToolChoice:
        match self.tool_choice:
            case None:
                return ToolChoice()
            case NamedFunction() | NamedCustom() as tool:
                return ToolChoice(mode="required", named=tool.name)
            case AllowedChoice(allowed_tools=allowed):
                names = tuple(tool.name for tool in allowed.tools)
                return ToolChoice(mode=allowed.mode, allowed=names)
            case mode:
                return ToolChoice(mode=mode)

    @property
    def declared(self) -> list[dict[str, Any]]:
        """Tools that the model is shown: all, or none if none may be called."""
        return [] if self.tools is None or self.choice.mode == "none" else self.tools


def tools_spec(
    tools: Sequence[dict[str, Any]] | None,
    policy: Policy,
    choice: ToolChoice | None = None,
    *,
    parallel: bool = True,
    content: Spec | None = None,
    places: Sequence[str] | None = None,
    schema_name: str = "parameters",
    order: PropertyOrder | None = None,
) -> Spec | None:
    """Return the spec of an answer with tools; None if there are no tools, or none may be called.

    `tools` have the form of a chat, `ToolForm`. `content` is the spec of answers without calls;
    None: free text. In a body of another form, `places` are the tools' JSON pointers, and
    `schema_name` is the field of their schemas. `order` is that of the arguments' properties.
    Raises `RequestError`.
    """
    choice = choice or ToolChoice()
    if not tools:
        if choice.mode == "required" or choice.allowed is not None:
            raise RequestError("tool_choice needs tools, and there are no tools")
        return None
    if choice.mode == "none":
        return None
    by_name = {tool[tool["type"]]["name"]: tool for tool in tools}
    allowed = frozenset(choice.allowed or ())
    for name in (choice.named,) if choice.named is not None else choice.allowed or ():
        if name not in by_name:
            offered = ", ".join(map(shown, by_name))
            raise RequestError(f"tool_choice must name one of {offered:.200}, got {name!r:.80}")
    if choice.allowed is not None:
        kept = [i for i, tool in enumerate(tools) if tool[tool["type"]]["name"] in allowed]
        own = [f"/tools/{i}/{tool['type']}" for i, tool in enumerate(tools)]
        places = [(places or own)[i] for i in kept]
        tools = [tools[i] for i in kept]
    if choice.mode == "required":
        content = None

    def make() -> Spec:
        try:
            for i, tool in enumerate(tools):
                if (spec := input_spec(tool, f"/tools/{i}/custom")) is not None:
                    policy.check(spec)
            return Tools(
                tools,
                choice.mode,
                choice.named,
                parallel,
                content=content,
                property_order=order or "required",
            )
        except InvalidGrammarError as error:
            where = _moved(error.where, places, schema_name) if places else error.where
            raise InvalidGrammarError(error.kind, error.reason, where) from error

    return _make_spec("tools", policy, Tools.kind, tools, make)


_POINTER = re.compile(r"/tools/(\d+)/(?:function|custom)(/parameters)?")


def _moved(where: str, places: Sequence[str], schema_name: str) -> str:
    """Return a pointer into tools of a chat as one into the tools at `places`."""

    def moved(pointer: re.Match[str]) -> str:
        return places[int(pointer[1])] + (f"/{schema_name}" if pointer[2] else "")

    return _POINTER.sub(moved, where, count=1)


class ConstraintFields(FormatFields, ToolFields):
    """Fields of a body that constrain its answer."""

    def spec(self, policy: Policy) -> Spec | None:
        """Return the one constraint; None for free text. Raises `RequestError`.

        Tools constrain the answer unless `tool_choice` is "none". A `response_format` beside them
        constrains answers without calls.
        """
        spec = tools_spec(
            self.tools,
            policy,
            self.choice,
            parallel=self.parallel_tool_calls is not False,
            content=(content := self.content_spec(policy, bool(self.declared))),
            order=self.property_order,
        )
        return spec or content


class ConstraintBody(ConstraintFields):
    """Body whose fields without a constraint are not read."""

    @classmethod
    def check_names(cls, values: Mapping[str, Any]) -> None:
        check_old(values)


def constraint_of(body: Any, policy: Policy) -> Spec | None:
    """Return the one constraint in `body`; None for free text. Fields about other things are not
    read. Raises `RequestError`."""
    return validated(ConstraintBody.model_validate, body).spec(policy)
