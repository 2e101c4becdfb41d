"""Bodies of `/v1/responses`, and the requests they become.

A body's `input` is text, or items: messages, calls of tools and their results. They may continue a
stored response. Items and tools become messages and tools of a chat, so that a request means the
same whichever way it arrives. Items `additional_tools` offer tools as `tools` does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from dlm.errors import RequestError
from dlm.grammar import Spec
from dlm.openai.answer_format import (
    FormatOptions,
    json_object_spec,
    json_schema_spec,
    order_of,
    outputs_spec,
)
from dlm.openai.body import (
    REQUIRED,
    Body,
    ByField,
    Each,
    JsonModel,
    Object,
    Takes,
    json_text,
    validated,
)
from dlm.openai.formats import Schema, StructuredOutputs
from dlm.openai.logprobs import ResponseLogprobFields, check_response_numbers
from dlm.openai.messages import EFFORT, Effort
from dlm.openai.other_fields import CHAT_HINTS, Hints, LenientModel, NeutralFields, admitted
from dlm.openai.requests import DrawFields, Generation, ModelName, admitted_tokens, choice_requests
from dlm.openai.response_items import (
    ITEMS,
    AdditionalToolsItem,
    ClientResponses,
    Conversation,
    InputItem,
    PlacedItem,
    typed,
)
from dlm.openai.response_tools import AllowedNames, FlatName, OfferedTools
from dlm.openai.tools import ToolChoice, tools_spec
from dlm.policy import Policy

_CHOICE = """none, auto, required, {"type": "function", "name": ...}, {"type": "custom", "name": \
...} or {"type": "allowed_tools", "mode": ..., "tools": [...]}"""


class NamedFormat(JsonModel):
    """Format that its type alone describes."""

    type: Literal["text", "json_object"] = REQUIRED


class SchemaFormat(JsonModel):
    type: Literal["json_schema"] = REQUIRED
    source: Schema = Field(REQUIRED, alias="schema")
    strict: bool | None = None


class TextOptions(FormatOptions):
    place = "text"

    format: Annotated[NamedFormat | SchemaFormat, ByField("type")] | None = None


class ReasoningOptions(JsonModel):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


_TOOLS = """`function`, `custom` with a `format` of `text` or a `grammar` (`lark`, `regex`; under \
`--policy all`), `namespace`. Hosted tools (`web_search`, `mcp`, ...) are left out, as in vLLM. \
Choices: none, auto, required, a named tool, `allowed_tools`. Items `additional_tools` of the \
input offer their tools as well"""


class ResponseConstraintFields(JsonModel):
    """Fields of a body that constrain its answer."""

    text: TextOptions | None = Field(
        None,
        description="`format`: `text`, `json_object`, or `json_schema` with its `schema`; \
`strict` as in a chat. `verbosity` has no effect",
    )
    structured_outputs: StructuredOutputs | None = Field(
        None,
        description="as in a chat, instead of `text.format`; `property_order` alone, beside it",
    )
    tools: Each[Object] | None = Field(None, description=_TOOLS)
    tool_choice: (
        Annotated[
            Literal["none", "auto", "required"]
            | Annotated[FlatName | AllowedNames, ByField("type")],
            Takes(_CHOICE),
        ]
        | None
    ) = Field(None, description=_TOOLS)
    parallel_tool_calls: bool | None = Field(None, description=_TOOLS)

    def offered(self) -> OfferedTools:
        """Return the tools of `tools`. Raises `RequestError`."""
        offered = OfferedTools()
        offered.add(self.tools or (), "tools")
        return offered

    @property
    def choice(self) -> ToolChoice:
        match self.tool_choice:
            case None:
                return ToolChoice()
            case FlatName() as tool:
                return ToolChoice(mode="required", named=tool.full_name)
            case AllowedNames(mode=mode, tools=tools):
                return ToolChoice(mode=mode, allowed=tuple(tool.full_name for tool in tools))
            case mode:
                return ToolChoice(mode=mode)

    def content_spec(self, policy: Policy) -> Spec | None:
        """Return the spec of the answer's text; None for free text. Raises `RequestError`."""
        order, offered = order_of(self.structured_outputs), self.tools or ()
        others = bool(offered) or (self.text is not None and self.text.format is not None)
        outputs = outputs_spec(self.structured_outputs, policy, others)
        spec = None
        match self.text and self.text.format:
            case NamedFormat(type="json_object"):
                spec = json_object_spec("text.format", policy)
            case SchemaFormat(source=source, strict=strict):
                lax = strict is not True
                field = "text.format.schema"
                spec = json_schema_spec(field, source, policy, lax, order=order)
        if spec is not None and outputs is not None:
            raise RequestError(
                "text.format and structured_outputs each constrain the answer: send one of them"
            )
        return spec or outputs

    def spec(self, policy: Policy, offered: OfferedTools | None = None) -> Spec | None:
        """Return the one constraint; None for free text. `offered` are all tools of the body, by
        default those of `tools`. Raises `RequestError`."""
        content = self.content_spec(policy)
        offered = offered or self.offered()
        spec = tools_spec(
            offered.forms,
            policy,
            self.choice,
            parallel=self.parallel_tool_calls is not False,
            content=content,
            places=offered.places,
            order=order_of(self.structured_outputs),
        )
        return spec or content


def response_constraint_of(body: Any, policy: Policy) -> Spec | None:
    """Return the one constraint in `body`; None for free text. Fields about other things are not
    read. Raises `RequestError`."""
    return validated(ResponseConstraintFields.model_validate, body).spec(policy)


_LABELS = "repeated in the response, without an effect"


class ResponsesBody(LenientModel, ResponseConstraintFields, ResponseLogprobFields, DrawFields):
    """Body of `/v1/responses`."""

    neutral: ClassVar[NeutralFields] = {
        "background": ((False,), "an answer is made while its client waits"),
        "conversation": ((), "use previous_response_id, or send all items"),
        "prompt": ((), "there are no templates of prompts here"),
        "n": ((1,), "a response is one answer"),
        "stop": (([], ""), "the text ends where it is complete"),
        "stop_token_ids": (([],), "the text ends where it is complete"),
        "response_format": ((), "use text.format"),
        "messages": ((), "use input"),
        "max_tokens": ((), "use max_output_tokens"),
        "max_completion_tokens": ((), "use max_output_tokens"),
        "reasoning_effort": ((), "use reasoning.effort"),
    }
    hints: ClassVar[Hints] = {
        **CHAT_HINTS,
        "schema": 'a schema goes to text.format: {"type": "json_schema", "name": ..., "schema": '
        "...}, or to structured_outputs.json",
        "json_object": 'any JSON object is text.format: {"type": "json_object"}',
        "length": "send max_output_tokens",
        "thinking": "send reasoning.effort",
        "stop": "the text ends where it is complete",
    }

    input: Annotated[str | Each[InputItem], Takes("text, or a list of items")] = Field(
        REQUIRED,
        description="text, or items: messages, function calls and custom tool calls with their \
results, additional tools. Messages of users and results may hold images (`input_image`), for a \
model with a vision tower. Earlier reasoning and calls of hosted tools are left out; a reference \
to an item is a 400",
    )
    model: ModelName | None = Field(None, description="as in a chat")
    instructions: str | None = Field(
        None,
        description="the message of the system; messages of the system at the beginning of the \
input are added to it. Those of an earlier response do not go on",
    )
    previous_response_id: str | None = Field(
        None, description="continues a stored response; a 400 if it is not stored any more"
    )
    store: bool | None = Field(
        None,
        description="true by default: the response is kept in memory for its client alone, among \
at most `--stored-responses` in 64 MiB; the client that has most loses its oldest first",
    )
    reasoning: ReasoningOptions | None = Field(
        None,
        description="`effort` as `reasoning_effort` in a chat, by default none. With a `summary` \
the reasoning itself is sent as the summary, otherwise as content",
    )
    max_output_tokens: int | None = Field(
        None,
        description="by default 1,024, or fewer if the context ends earlier. A text that they cut \
off is `incomplete`; under a constraint the answer ends within them, and is `incomplete` if they \
made it another answer",
    )
    truncation: Literal["auto", "disabled"] | None = Field(None, description=_LABELS)
    stream: bool | None = Field(
        None, description="events with their types, numbered, as OpenAI's own"
    )
    metadata: Object | None = Field(None, description=_LABELS)

    @property
    def placed_items(self) -> list[PlacedItem]:
        """Items of the input, with their paths in the body."""
        items = [] if isinstance(self.input, str) else self.input
        return [(f"input[{i}]", item) for i, item in enumerate(items)]

    @property
    def thinking(self) -> tuple[bool, int | None]:
        """Whether to think, and the most tokens for it."""
        effort = self.reasoning.effort if self.reasoning else None
        budget = EFFORT[effort] if effort else 0
        return (True, budget) if budget else (False, None)

    @property
    def summarized(self) -> bool:
        """Whether reasoning is sent as a summary, which is the reasoning itself."""
        options = self.reasoning
        summary = options and (options.summary or options.generate_summary)
        return summary not in (None, "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseGeneration(Generation):
    """Content of one body, with what its answer repeats.

    It lives as long as the answer is made, and what it repeats may be of any form: as JSON that
    takes a fiftieth of the memory of its values.
    """

    repeated: bytes  # fields of the body that the response repeats, as a JSON object
    repeated_names: tuple[str, ...]  # of these fields
    items: bytes  # of its input, as a JSON list; empty if they are not stored
    previous: str | None  # id of the response that it continues
    reasoning_options: ReasoningOptions
    namespaces: Mapping[str, tuple[str, str]]  # namespace and name by the name that is shown
    summarized: bool  # reasoning is sent as a summary
    responses: ClientResponses | None  # where the response is stored; None: nowhere


def response_of(body: Any, policy: Policy, responses: ClientResponses) -> ResponseGeneration:
    """Read a body of `/v1/responses`; `responses` are its client's stored ones. Raises
    `RequestError`."""
    parsed = validated(ResponsesBody.model_validate, admitted(body, policy))
    conversation = [*_earlier_items(parsed, responses), *parsed.placed_items]
    offered = parsed.offered()
    for path, item in conversation:
        if isinstance(item, AdditionalToolsItem):
            offered.add(item.tools, f"{path}.tools")
    choice, forms = parsed.choice, offered.forms
    constraint = parsed.spec(policy, offered)
    tokens = admitted_tokens("max_output_tokens", parsed.max_output_tokens, policy)
    thinking, thinking_budget = parsed.thinking
    fields: dict[str, Any] = {
        "messages": _messages(parsed, conversation),
        "constraint": constraint,
        "max_tokens": policy.answer_tokens if tokens is None else tokens,
        "fit": tokens is None,
        "tools": forms if choice.mode != "none" else [],
        "thinking": thinking or None,
        "thinking_budget": thinking_budget,
        "logprobs": parsed.alternatives,
    }
    fields = parsed.draws | {name: value for name, value in fields.items() if value is not None}
    if isinstance(parsed.input, str):
        items = [{"type": "message", "role": "user", "content": parsed.input}]
    else:
        items = [typed(item) for item in body["input"]]
    stored = parsed.store is not False and responses.kept
    names = tuple(name for name in REPEATED if body.get(name) is not None)
    repeated = [b'"%s": %s' % (name.encode(), json_text(name, body[name])) for name in names]
    requests = choice_requests([fields], None, policy)
    check_response_numbers(requests)
    return ResponseGeneration(
        requests=requests,
        model=parsed.model,
        stream=parsed.stream or False,
        tokens_field="max_output_tokens",
        prompt_field="input",
        named=choice.named is not None and bool(forms),
        repeated=b"{" + b", ".join(repeated) + b"}",
        repeated_names=names,
        items=json_text("input", items) if stored else b"[]",
        previous=parsed.previous_response_id,
        reasoning_options=parsed.reasoning or ReasoningOptions(),
        namespaces=offered.namespaces,
        summarized=parsed.summarized,
        responses=responses if stored else None,
    )


REPEATED: Mapping[str, Any] = {  # fields that a response repeats, with their defaults
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}


def _earlier_items(body: ResponsesBody, responses: ClientResponses) -> list[PlacedItem]:
    """Return the items of the stored conversation that a body continues. Raises `RequestError`."""
    if (id := body.previous_response_id) is None:
        return []
    items = validated(ITEMS.validate_python, responses.conversation(id))
    return [(f"previous_response_id.items[{i}]", item) for i, item in enumerate(items)]


def _messages(body: ResponsesBody, items: Sequence[PlacedItem]) -> list[Body]:
    """Return the conversation in the form of a chat: instructions, `items`, and an input of text.

    Instructions, and messages of the system before all others, are one message of the system.
    """
    conversation = Conversation()
    if body.instructions:
        conversation.add_text("system", body.instructions)
    for path, item in items:
        conversation.add(item, path)
    if isinstance(body.input, str):
        conversation.add_text("user", body.input)
    if not (messages := conversation.all()):
        empty = "a list without a text or a call" if body.input else "an empty list"
        raise RequestError(f"input must be text, or a list of items, got {empty}", field="input")
    return messages
