"""Conversations in the form of Responses: their items, and the responses that a server keeps.

A `Conversation` makes messages of a chat from items. A `ResponseStore` keeps finished responses, so
that clients can continue, read and delete them.
"""

import json
from collections import Counter, OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, TypeAdapter

from dlm.errors import RequestError
from dlm.grammar.specs.tool_forms import INPUT
from dlm.openai.body import (
    MOST_PARTS,
    REQUIRED,
    Body,
    ByField,
    Each,
    JsonModel,
    Object,
    Words,
    count_parts,
)
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
    """Return the text of a message whose role is not `user`. Raises `RequestError` for an image."""
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


_ENTRY = 1024  # bytes that a response takes at least


class UnknownResponseError(RequestError):
    """Error for a response that is not stored: an HTTP 404."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A finished response, and what it answers, as JSON: values take many times as much memory."""

    id: str
    response: bytes  # an object, without the fields of its body
    output: bytes = b"[]"  # its items, without log-probabilities
    repeated: bytes = b"{}"  # the fields of its body that it repeats
    items: bytes = b"[]"  # of its body's input
    previous: str | None = None  # id of the response that it continues

    @property
    def taken(self) -> int:
        """Bytes that count for the limit, which are those that it takes."""
        return _ENTRY + self.turn_size + len(self.response) + len(self.repeated)

    @property
    def turn_size(self) -> int:
        """Bytes of its items and its output."""
        return len(self.items) + len(self.output)

    @property
    def whole(self) -> bytes:
        """The response as its client gets it."""
        if self.repeated == b"{}":
            return self.response
        return self.response[:-1] + b", " + self.repeated[1:]

    def turn(self) -> list[Body]:
        """Return its items, and those of its output."""
        return [*json.loads(self.items), *json.loads(self.output)]


class ResponseStore:
    """Responses of all clients. Each client sees its own alone. When the store is full, the client
    that has most of it loses the response that it has not used for longest. Nothing is written to
    disk. Used from several threads."""

    def __init__(
        self, most: int = 1000, most_bytes: int = 64 << 20, conversation_bytes: int = 16 << 20
    ):
        """Keep at most `most` responses, 0 for none, of `most_bytes` together. A conversation of
        over `conversation_bytes` is not continued."""
        self._most, self._most_bytes = most, most_bytes
        self.conversation_bytes = conversation_bytes
        # By client, and there by id; the one that has been used last is at the end.
        self._clients: dict[str, OrderedDict[str, StoredResponse]] = {}
        self._sizes = Counter[str]()  # bytes of the responses, by client
        self._count = 0  # responses of all clients
        self._lock = Lock()

    def of(self, client: str) -> "ClientResponses":
        """Return the responses of one client."""
        return ClientResponses(self, client)

    @property
    def kept(self) -> bool:
        """Whether responses are kept at all."""
        return self._most > 0

    def put(self, client: str, stored: StoredResponse) -> None:
        with self._lock:
            self._clients.setdefault(client, OrderedDict())[stored.id] = stored
            self._count += 1
            self._sizes[client] += stored.taken
            while self._count > self._most or self._sizes.total() > self._most_bytes:
                ((largest, _),) = self._sizes.most_common(1)
                self._remove(largest, next(iter(self._clients[largest])))

    def get(self, client: str, id: str) -> StoredResponse | None:
        """Return a response, which then counts as used last."""
        with self._lock:
            if id not in (own := self._clients.get(client, OrderedDict())):
                return None
            own.move_to_end(id)
            return own[id]

    def delete(self, client: str, id: str) -> bool:
        """Delete a response; return whether it was there."""
        with self._lock:
            kept = id in self._clients.get(client, ())
            if kept:
                self._remove(client, id)
            return kept

    def _remove(self, client: str, id: str) -> None:
        own = self._clients[client]
        self._sizes[client] -= own.pop(id).taken
        self._count -= 1
        if not own:
            del self._clients[client], self._sizes[client]


@dataclass(frozen=True, slots=True)
class ClientResponses:
    """Responses of one client."""

    store: ResponseStore
    client: str

    @property
    def kept(self) -> bool:
        return self.store.kept

    def put(self, stored: StoredResponse) -> None:
        self.store.put(self.client, stored)

    def get(self, id: str) -> StoredResponse:
        """Return a response. Raises `UnknownResponseError`."""
        if (stored := self.store.get(self.client, id)) is None:
            raise UnknownResponseError(f"there is no response {id!r:.60} here")
        return stored

    def delete(self, id: str) -> None:
        """Delete a response. Raises `UnknownResponseError`."""
        if not self.store.delete(self.client, id):
            raise UnknownResponseError(f"there is no response {id!r:.60} here")

    def conversation(self, id: str) -> list[Body]:
        """Return the items of a response's whole conversation, its output included. Raises
        `RequestError` if a part of it is not stored any more, or if it is too long."""
        turns: list[StoredResponse] = []
        size = parts = 0
        at: str | None = id
        while at is not None:
            if (stored := self.store.get(self.client, at)) is None:
                gone = "is not stored here" if at == id else "continues one that is not stored here"
                kept = "" if self.kept else ": this server stores none"
                raise RequestError(
                    f"previous_response_id {id!r:.60} {gone}{kept}; send all items as input",
                    field="previous_response_id",
                )
            size += stored.turn_size
            if size > self.store.conversation_bytes:
                raise RequestError(
                    f"previous_response_id {id!r:.60} continues a conversation of over "
                    f"{self.store.conversation_bytes} bytes: send the items that matter as input",
                    field="previous_response_id",
                )
            parts += count_parts(stored.items) + count_parts(stored.output)
            if parts > MOST_PARTS:
                raise RequestError(
                    f"previous_response_id {id!r:.60} continues a conversation of too many values: "
                    "send the items that matter as input",
                    field="previous_response_id",
                )
            turns.append(stored)
            at = stored.previous
        return [item for stored in reversed(turns) for item in stored.turn()]
