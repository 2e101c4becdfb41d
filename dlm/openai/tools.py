"""Tools of a body in the form of a chat, the choice among them, and the spec of their calls.

`tools_spec` is for bodies of other forms too: they make tools in the form of a chat, and a
`ToolChoice`. `Tools` checks names, schemas and grammars. A server leaves schemas to the process
that compiles them, since reading those of twenty tools holds it up for 15 ms.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from dlm.errors import RequestError
from dlm.grammar import InvalidGrammarError, Spec, Tools
from dlm.grammar.schema import PropertyOrder
from dlm.grammar.specs.tool_forms import ToolPlaces, input_spec
from dlm.openai.answer_format import make_spec
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
    shown,
)
from dlm.policy import Policy


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
    Raises `RequestError`; for schemas, if the policy has them read at once.
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

    placed = ToolPlaces(places, schema_name)

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
                at_once=policy.tools_at_once,
                places=placed,
            )
        except InvalidGrammarError as error:
            raise placed.placed(error) from error

    return make_spec("tools", policy, Tools.kind, tools, make)


def tools_refusal(tools: Tools, error: InvalidGrammarError) -> RequestError:
    """Return the error of a body whose `tools`, or the answers beside their calls, could not be
    compiled: as `tools_spec` raises it for schemas that are read at once."""
    field, placed = "tools: " if error.kind == Tools.kind else "", tools.places.placed(error)
    refusal = RequestError(f"{field}{placed}")
    refusal.__cause__ = placed
    return refusal
