"""Bodies of `/v1/messages`, and the requests they become.

Blocks of content and tools become messages and tools of a chat, so that a request means the same
whichever way it arrives.

Fields that only label, cache or bill are ignored. Tools that a server would run itself
(`web_search_...`, `web_fetch_...`, `code_execution_...`) are left out; tools whose parameters only
Anthropic's own models know (`bash_...`, `computer_...`) are refused.
"""

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from dlm.anthropic.blocks import (
    BLOCKS,
    Block,
    DocumentBlock,
    ImageBlock,
    ResultBlock,
    SearchResultBlock,
    TextContent,
    UseBlock,
    as_error,
    content_of,
    text_of,
)
from dlm.errors import RequestError
from dlm.grammar import Spec
from dlm.openai.answer_format import FormatOptions, json_schema_spec
from dlm.openai.body import (
    REQUIRED,
    Body,
    ByField,
    Each,
    JsonModel,
    Object,
    Several,
    Takes,
    Words,
    shown,
    validated,
    wrong,
)
from dlm.openai.formats import Order, Schema
from dlm.openai.messages import EFFORT, CallBook, arguments_of
from dlm.openai.other_fields import CHAT_HINTS, Hints, LenientModel, NeutralFields, admitted
from dlm.openai.requests import DrawFields, Generation, ModelName, choice_requests, given_fields
from dlm.openai.response_items import UnknownResponseError
from dlm.openai.tools import ToolChoice, tools_spec
from dlm.policy import Policy
from dlm.request import Request


class UnknownThreadError(UnknownResponseError):
    """Error for a conversation that a client continues and the server does not hold. Its clients
    then send the whole conversation."""


_TYPES = "text, image, document, search_result, tool_use or tool_result (no model reads others)"


class Message(JsonModel):
    role: Literal["user", "assistant", "system"] = REQUIRED
    content: Annotated[str | Each[Annotated[Block, ByField("type", _TYPES)]], BLOCKS] = REQUIRED


class ClientTool(JsonModel):
    """Tool that the client runs."""

    type: Literal["custom"] = "custom"
    name: Annotated[Words, Takes("the name of a tool")] = REQUIRED
    description: str | None = None
    input_schema: Object = REQUIRED
    strict: bool | None = None

    def chat_form(self) -> Body:
        fields = {"description": self.description, "strict": self.strict}
        function = {name: value for name, value in fields.items() if value is not None}
        function |= {"name": self.name, "parameters": self.input_schema}
        return {"type": "function", "function": function}


_HOSTED = re.compile(r"(web_search|web_fetch|code_execution|tool_search_tool_\w+?)_\d+")


class UseChoice(JsonModel):
    type: Literal["auto", "any", "none"] = REQUIRED
    disable_parallel_tool_use: bool | None = None


class NamedUseChoice(JsonModel):
    type: Literal["tool"] = REQUIRED
    name: str = REQUIRED
    disable_parallel_tool_use: bool | None = None


class EnabledThinking(JsonModel):
    type: Literal["enabled"] = REQUIRED
    budget_tokens: Annotated[int, Field(ge=1), Takes("a whole number, 1 or more tokens")] = REQUIRED


class OtherThinking(JsonModel):
    type: Literal["adaptive", "disabled"] = REQUIRED


class OutputFormat(JsonModel):
    type: Literal["json_schema"] = REQUIRED
    source: Schema | None = Field(None, alias="schema")


class OutputConfig(FormatOptions):
    place = "output_config"

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None
    property_order: Order | None = None


class CreatedThread(JsonModel):
    type: Literal["create"] = REQUIRED


class ContinuedThread(JsonModel):
    type: Literal["continue"] = REQUIRED
    previous_message_id: str = REQUIRED


_TOOLS = """tools with an `input_schema`. Web search, web fetch and code execution are left out; \
other tools of a type of Anthropic's (`bash_...`, `computer_...`) are a 400. Choices: auto, any, \
tool, none; `disable_parallel_tool_use`"""
_SAMPLED = "as in a chat"


class PromptBody(LenientModel):
    """Fields of a body that make a prompt: the body of `/v1/messages/count_tokens`."""

    neutral: ClassVar[NeutralFields] = {
        "mcp_servers": (([],), "this server connects to no other"),
        "response_format": ((), "use output_config.format"),
        "max_completion_tokens": ((), "use max_tokens"),
        "structured_outputs": ((), "use output_config.format"),
        "stop": ((), "use stop_sequences"),
        "stop_token_ids": (([],), "use stop_sequences"),
        "parallel_tool_calls": ((True,), "use tool_choice.disable_parallel_tool_use"),
        "instructions": ((), "use system"),
        "n": ((1,), "a message is one answer"),
        "speed": (("standard", "fast"), "there is one speed"),
        "bad_words": (([],), "use output_config.format"),
        "allowed_token_ids": (([],), "use output_config.format"),
    }
    hints: ClassVar[Hints] = {
        **CHAT_HINTS,
        "schema": 'a schema goes to output_config.format: {"type": "json_schema", "schema": ...}',
        "json_object": 'any JSON object is output_config.format: {"type": "json_schema", "schema": '
        '{"type": "object"}}',
        "regex": "a regex goes to output_config.format, as the pattern of a schema",
        "grammar": "a message has no grammars; a chat has them",
        "choice": "a list of texts goes to output_config.format, as the enum of a schema",
        "structural_tag": "a message has no structural tags; a chat has them",
        "guided": "use output_config.format",
        "extra_body": "send the fields that it holds at the top of the body",
        "length": "send max_tokens",
        "thinking": "send thinking",
    }

    messages: Annotated[Several[Message], Takes("a list of messages")] = Field(
        REQUIRED,
        description="text, or blocks: `text`, `image` (for a model with a vision tower), \
`document` (with a source of `text` or `content`), `search_result`, `tool_use`, `tool_result` \
(with text, images, documents and search results). A document and a search result become their \
text between two tags, after lines of title, context and source; `citations.enabled` is a 400. A \
`compaction` is its text. Earlier thinking and server tools are left out; documents of other \
sources are a 400. Images stand in messages of the user, results included. Messages of the \
system may stand among them, and the last one is the user's",
    )
    model: ModelName | None = Field(None, description="one of the names, else 404")
    system: TextContent | None = Field(None, description="text, or blocks of text")
    tools: Each[Object] | None = Field(None, description=_TOOLS)
    tool_choice: Annotated[UseChoice | NamedUseChoice, ByField("type")] | None = Field(
        None, description=_TOOLS
    )
    thinking: Annotated[EnabledThinking | OtherThinking, ByField("type")] | None = Field(
        None,
        description="`enabled` with `budget_tokens`, `disabled`, or `adaptive`: as many tokens as \
`output_config.effort` has, by default those of `high`",
    )
    output_config: OutputConfig | None = Field(
        None, description="`format`: `json_schema` with its `schema`; `effort` for thinking"
    )
    output_format: OutputFormat | None = Field(
        None, description="an earlier place of `output_config.format`"
    )
    thread: Annotated[CreatedThread | ContinuedThread, ByField("type")] | None = Field(
        None, description="`create` alone: no conversation is kept, and `continue` is a 404"
    )

    @cached_property
    def forms(self) -> dict[str, Body]:
        """The tools in the form of a chat, by their JSON pointers. Raises `RequestError`."""
        forms = ((f"/tools/{i}", _form(tool, i)) for i, tool in enumerate(self.tools or ()))
        return {place: form for place, form in forms if form is not None}

    @property
    def choice(self) -> ToolChoice:
        match self.tool_choice:
            case NamedUseChoice(name=name):
                return ToolChoice(mode="required", named=name)
            case UseChoice(type="none"):
                return ToolChoice(mode="none")
            case UseChoice(type="any"):
                return ToolChoice(mode="required")
        return ToolChoice()

    @property
    def reasoning(self) -> tuple[bool, int | None]:
        """Whether to think, and the most tokens for it. Adaptive thinking has those of its effort,
        by default "high" as Anthropic has it."""
        match self.thinking:
            case EnabledThinking(budget_tokens=budget):
                return True, budget
            case OtherThinking(type="adaptive"):
                effort = self.output_config.effort if self.output_config else None
                return True, EFFORT[effort or "high"]
        return False, None

    def spec(self, policy: Policy) -> Spec | None:
        """Return the constraint; None for free text. Raises `RequestError`."""
        config, content = self.output_config, None
        order = config.property_order if config else None
        format = (config.format if config else None) or self.output_format
        if format is not None:
            field = "output_config.format.schema"
            if format.source is None:
                raise wrong(field, None, "a JSON schema")
            content = json_schema_spec(field, format.source, policy, True, order=order)
        parallel = self.tool_choice is None or not self.tool_choice.disable_parallel_tool_use
        tools = tools_spec(
            list(self.forms.values()),
            policy,
            self.choice,
            parallel=parallel,
            content=content,
            places=list(self.forms),
            schema_name="input_schema",
            order=order,
        )
        return tools or content

    def prompt(self) -> dict[str, Any]:
        """Return the fields of a `Request` that make its prompt. No conversation is kept, so that
        none can be continued. Raises `RequestError`."""
        if isinstance(self.thread, ContinuedThread):
            raise UnknownThreadError(
                f"thread.previous_message_id is {shown(self.thread.previous_message_id)}: no "
                "conversation is kept here; send all messages"
            )
        tools = list(self.forms.values()) if self.choice.mode != "none" else []
        thinking, budget = self.reasoning
        fields = {"messages": _messages(self), "tools": tools, "thinking": thinking}
        return fields if budget is None else {**fields, "thinking_budget": budget}


class MessagesBody(PromptBody):
    """Body of `/v1/messages`."""

    max_tokens: Annotated[
        int, Field(ge=1, lt=2**63), Takes("a whole number of 64 bits, 1 or more tokens")
    ] = Field(
        REQUIRED,
        description="an answer has fewer if the context has no room for more; under a constraint \
it ends within them, and `stop_reason` is `max_tokens` if they made it another answer",
    )
    stop_sequences: Each[str] | None = Field(
        None, description="free text ends before them, as with `stop` in a chat"
    )
    temperature: Annotated[int | float, Takes("0 to 1")] | None = Field(None, description=_SAMPLED)
    top_p: Annotated[int | float, Takes("more than 0, up to 1")] | None = Field(
        None, description=_SAMPLED
    )
    top_k: int | None = Field(None, description=_SAMPLED)
    min_p: Annotated[int | float, Takes("0 to 1")] | None = Field(None, description=_SAMPLED)
    seed: int | None = Field(None, description=_SAMPLED)
    stream: bool | None = Field(None, description="events from `message_start` to `message_stop`")
    metadata: Object | None = Field(None, description="without an effect")


def message_of(body: Any, policy: Policy) -> Generation:
    """Read a body of `/v1/messages`. An answer has fewer than `max_tokens` tokens if the context or
    the server has no room for more. Raises `RequestError`."""
    parsed = validated(MessagesBody.model_validate, admitted(body, policy))
    fields = parsed.prompt() | {
        "constraint": parsed.spec(policy),
        "max_tokens": min(parsed.max_tokens, policy.max_answer_tokens),
        "fit": True,
        "stop": [text for text in parsed.stop_sequences or () if text],
        **given_fields(parsed, DrawFields),
    }
    requests = choice_requests([fields], None, policy)
    return Generation(requests=requests, model=parsed.model, stream=parsed.stream or False)


def prompt_of(body: Any, policy: Policy) -> tuple[str | None, Request]:
    """Read a body of `/v1/messages/count_tokens`: its model, and a request with its prompt. Raises
    `RequestError`."""
    parsed = validated(PromptBody.model_validate, body)
    parsed.spec(policy)  # raises for what a message would be refused for
    return parsed.model, Request(**parsed.prompt(), constrained=False)


def _form(tool: Body, number: int) -> Body | None:
    """Return a tool in the form of a chat; None if a server would run it."""
    kind, where = tool.get("type"), f"tools[{number}]"
    if isinstance(kind, str) and _HOSTED.fullmatch(kind):
        return None
    if kind not in (None, "custom"):
        raise RequestError(
            f"{where}.type must be custom, with an input_schema, got {shown(kind)}; a tool that "
            "only Anthropic's models know is not served",
            field="tools",
        )
    return validated(ClientTool.model_validate, tool, where).chat_form()


def _messages(body: PromptBody) -> list[Body]:
    """Return the conversation in the form of a chat. Raises `RequestError`."""
    turns, book = list[Body](), CallBook()
    if body.system is not None and (system := text_of(body.system)):
        turns.append({"role": "system", "content": system})
    for i, message in enumerate(body.messages):
        turns += _turn(message, f"messages[{i}].content", book)
    if not turns or turns[-1]["role"] == "assistant":
        raise RequestError(
            "the last message must be the user's, got the assistant's: an answer does not continue "
            "an earlier text",
            field="messages",
        )
    return turns


def _turn(message: Message, where: str, book: CallBook) -> Iterator[Body]:
    """Yield a message's results of tools, and then its text and calls."""
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    calls, results = [], 0
    for i, block in enumerate(message.content):
        match block:
            case UseBlock() if message.role != "assistant":
                raise _misplaced(f"{where}[{i}]", block.type, "the assistant's")
            case ResultBlock() | DocumentBlock() | SearchResultBlock() | ImageBlock() if (
                message.role != "user"
            ):
                raise _misplaced(f"{where}[{i}]", block.type, "the user's")
            case UseBlock(id=id, name=name, input=arguments):
                calls.append(book.call(id, name, arguments_of(arguments)))
            case ResultBlock(tool_use_id=id):
                results += 1
                content = content_of(block.content, f"{where}[{i}].content")
                if block.is_error:
                    content = as_error(content)
                yield book.result(f"{where}[{i}].tool_use_id", id, content, "messages")
    parts = content_of(message.content, where)
    if parts or calls or not results:
        turn: Body = {"role": message.role, "content": parts}
        yield {**turn, "tool_calls": calls} if calls else turn


def _misplaced(where: str, kind: str, right: str) -> RequestError:
    return RequestError(
        f"{where}.type must not be {kind} here: it must be in {right} messages", field="messages"
    )
