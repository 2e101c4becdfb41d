"""Items of a conversation in the form of Responses, and the messages of a chat that they become."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, TypeAdapter

from dlm.errors import RequestError
from dlm.grammar.specs.tools import INPUT
from dlm.openai.body import REQUIRED, Body, ByField, Each, JsonModel, Object, Words
from dlm.openai.messages import (
    AnyContent,
    CallBook,
    ImagePart,
    arguments_of,
    content_of,
    text_of,
)


class MessageItem(JsonModel):
    type: Literal["message"] = REQUIRED
    role: Literal["user", "assistant", "system", "developer"] = REQUIRED
    content: AnyContent = REQUIRED


class CallItem(JsonModel):
    """Call of a function."""

    type: Literal["function_call"] = REQUIRED
    call_id: Words = REQUIRED
    name: Words = REQUIRED
    namespace: str | None = None
    arguments: Any = None


class CustomCallItem(JsonModel):
    """Call of a custom tool."""

    type: Literal["custom_tool_call"] = REQUIRED
    call_id: Words = REQUIRED
    name: Words = REQUIRED
    namespace: str | None = None
    input: str = ""


class ResultItem(JsonModel):
    """Result of a tool."""

    type: Literal["function_call_output", "custom_tool_call_output"] = REQUIRED
    call_id: Words = REQUIRED
    output: AnyContent = ""


class AdditionalToolsItem(JsonModel):
    """Tools that the model may call, beside those of the body's `tools`."""

    type: Literal["additional_tools"] = REQUIRED
    role: Literal["developer"] | None = None
    tools: Each[Object] = REQUIRED


class CompactionItem(JsonModel):
    """Encrypted text that stands for earlier items, or the request to write one."""

    type: Literal["compaction", "compaction_trigger"] = REQUIRED


class OmittedItem(JsonModel):
    """Item that the model is not shown: earlier reasoning, and work of tools of other servers."""

    type: Literal[
        "reasoning",
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_list_tools",
        "mcp_call",
    ] = REQUIRED


def typed(value: Any) -> Any:
    """Return an item with its type: one with a role alone is a message."""
    if isinstance(value, dict) and value.get("type") is None and "role" in value:
        return {**value, "type": "message"}
    return value


ConversationItem = (
    MessageItem
    | CallItem
    | CustomCallItem
    | ResultItem
    | AdditionalToolsItem
    | CompactionItem
    | OmittedItem
)
InputItem = Annotated[Annotated[ConversationItem, ByField("type")], BeforeValidator(typed)]
PlacedItem = tuple[str, ConversationItem]  # an item after its path in the body
ITEMS: TypeAdapter[list[ConversationItem]] = TypeAdapter(Each[InputItem])

_NAMESPACE = "__"  # between the names of a namespace and of a tool, as in vLLM


def _texts(content: str | list[Any], where: str) -> str | list[Any]:
    """Return content of a message that is no user's. Raises `RequestError` for an image in it."""
    for i, part in enumerate(content):
        if isinstance(part, ImagePart):
            raise RequestError(
                f"{where}.content[{i}] is an image: only messages of users and results of tools "
                "hold images",
                field="input",
            )
    return content


def flat_name(namespace: str | None, name: str) -> str:
    """Return the name that the model is shown for a tool of a namespace."""
    return f"{namespace}{_NAMESPACE}{name}" if namespace else name


class Conversation:
    """Messages of a chat, made of items."""

    def __init__(self) -> None:
        self._messages: list[Body] = []
        self._book = CallBook()
        self._system: list[str] = []  # texts of the system before all messages

    def all(self) -> list[Body]:
        """Return the messages."""
        if not self._system:
            return self._messages
        return [{"role": "system", "content": "\n\n".join(self._system)}, *self._messages]

    def add(self, item: ConversationItem, where: str) -> None:
        """Add an item, which stands at `where` in its body. Raises `RequestError` for a compaction
        and for the result of a call that is unknown."""
        match item:
            case MessageItem(role="user"):
                content = content_of(item.content, f"{where}.content")
                self._messages.append({"role": "user", "content": content})
            case MessageItem(role=role):
                text = text_of(_texts(item.content, where))
                self.add_text("system" if role == "developer" else role, text)
            case CallItem():
                self._call(item, arguments_of(item.arguments))
            case CustomCallItem():
                self._call(item, {INPUT: item.input})
            case ResultItem(call_id=id):
                content = content_of(item.output, f"{where}.output")
                self._messages.append(self._book.result(f"{where}.call_id", id, content, "input"))
            case CompactionItem(type=kind):
                raise RequestError(
                    f"{where}.type is {kind}, which is not supported: no text can stand for a "
                    "conversation here; send the items themselves",
                    field="input",
                )

    def add_text(self, role: str, text: str) -> None:
        if role == "system" and not self._messages:
            self._system.append(text)
        else:
            self._messages.append({"role": role, "content": text})

    def _call(self, item: CallItem | CustomCallItem, arguments: dict[str, Any] | str) -> None:
        """Add a call to the assistant's message before it, or to a message of its own."""
        last = self._messages[-1] if self._messages else None
        if last is None or last["role"] != "assistant":
            self._messages.append(last := {"role": "assistant", "content": ""})
        name = flat_name(item.namespace, item.name)
        last.setdefault("tool_calls", []).append(self._book.call(item.call_id, name, arguments))
