"""Conversations of clients, turned into the form that chat templates take.

Content is text, arguments are data, and a tool's result names its tool. Messages of users and
results of tools may hold images: data URLs, and addresses of hosts that the operator allows.
Content that no model reads is refused. Other fields of messages, such as an earlier answer's
reasoning, are not shown to the model. A message's `name` is passed to the template (some ignore
it).

Parts of content, `text_of`, `content_of`, `arguments_of` and `CallBook` are those of all forms of
requests.
`chat_messages` takes messages that a body's model holds, `messages_of` any JSON data.
`ReasoningFields` has the fields that let the model reason first; a form with other fields needs
`EFFORT` alone.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, TypeAdapter

from dlm.errors import RequestError
from dlm.grammar.regex import SURROGATES
from dlm.grammar.specs.tool_forms import INPUT
from dlm.images import ImageFile, RemoteImage
from dlm.openai.body import (
    REQUIRED,
    Body,
    ByField,
    ClosedModel,
    Each,
    JsonModel,
    Several,
    Takes,
    Words,
    having,
    parse_json,
    refused_name,
    shown,
    validated,
)
from dlm.openai.other_fields import closest

_DATA = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(;[\w.=+-]+)*;base64,", re.ASCII)
_LONGEST = 200  # characters of a data URL before its data
_RIGHT = "a data URL of an image in base64, or an https address"


class ImageAddress(JsonModel):
    url: Annotated[str, Takes(_RIGHT)] = REQUIRED
    detail: Any = None  # images are always read in the same detail


class ChatImage(JsonModel):
    """Image as chat completions have it."""

    type: Literal["image_url"] = REQUIRED
    image_url: Annotated[str | ImageAddress, Takes("a URL, or an object with a url")] = REQUIRED

    def part(self, place: str) -> dict[str, Any]:
        if isinstance(self.image_url, str):
            return image_part(self.image_url, f"{place}.image_url")
        return image_part(self.image_url.url, f"{place}.image_url.url")


class InputImage(JsonModel):
    """Image as Responses have it."""

    type: Literal["input_image"] = REQUIRED
    image_url: Annotated[str, Takes(_RIGHT)] | None = None
    file_id: str | None = None
    detail: Any = None

    def part(self, place: str) -> dict[str, Any]:
        if self.image_url is None:
            also = "" if self.file_id is None else f", and file_id {self.file_id:.40}"
            problem = f"is missing{also}; it must be {_RIGHT} (no files are stored here)"
            raise _image_error(f"{place}.image_url", problem)
        return image_part(self.image_url, f"{place}.image_url")


def image_part(url: str, place: str) -> dict[str, Any]:
    """Return the part of a message for an image at `url`, which stands at `place` in a body. Raises
    `RequestError`."""
    if url.startswith(("https://", "http://")):
        return {"type": "image", "image": RemoteImage(url, place)}
    head = _DATA.match(url, 0, _LONGEST)
    kind = head[1] if head else None
    if head is None or (kind is not None and not kind.lower().startswith("image/")):
        raise _image_error(place, f"must be {_RIGHT}, got {shown(url)}")
    return {"type": "image", "image": image_file(url[head.end() :], place)}


def image_file(data: str, place: str) -> ImageFile:
    """Return the file whose content in base64 is `data`. Raises `RequestError`."""
    try:
        return ImageFile(base64.b64decode("".join(data.split()), validate=True), place)
    except (binascii.Error, ValueError) as error:
        right = "letters, digits, + and /, in fours, and = for those that are missing"
        raise _image_error(place, f"must be base64: {right}") from error


def _image_error(place: str, problem: str) -> RequestError:
    return RequestError(f"{place} {problem}", field=place.partition("[")[0])


class TextContent(JsonModel):
    type: Literal["text", "input_text", "output_text"] = REQUIRED
    text: str = REQUIRED


class RefusalContent(JsonModel):
    type: Literal["refusal"] = REQUIRED
    refusal: str = REQUIRED


class ThoughtContent(JsonModel):
    """Earlier reasoning of the assistant, which the model is not shown."""

    type: Literal["thinking", "redacted_thinking", "reasoning"] = REQUIRED


Part = TextContent | RefusalContent
ImagePart = ChatImage | InputImage
_BY_TYPE = ByField("type", "text (only messages of users and results of tools hold images)")
_SHOWN = ByField("type", "text or image_url (no model here reads anything else)")
_CONTENT = Takes("text or a list of parts")
Content = Annotated[str | Each[Annotated[Part, _BY_TYPE]], _CONTENT]
ShownContent = Annotated[str | Each[Annotated[Part | ImagePart, _SHOWN]], _CONTENT]
AnyContent = Annotated[str | Each[Annotated[Part | ThoughtContent | ImagePart, _SHOWN]], _CONTENT]
OwnContent = Annotated[str | Each[Annotated[Part | ThoughtContent, _BY_TYPE]], _CONTENT]


def content_of(
    content: str | Sequence[Part | ThoughtContent | ImagePart], place: str
) -> str | list[Body]:
    """Return content of a user or of a tool's result for the chat template: text, or parts if there
    are images. `place` is the content's in its body. Raises `RequestError` for an image that is
    none."""
    if isinstance(content, str):
        return content
    texts = [part for part in content if not isinstance(part, ImagePart)]
    if len(texts) == len(content):
        return text_of(texts)
    return [
        part.part(f"{place}[{i}]")
        if isinstance(part, ImagePart)
        else {"type": "text", "text": text_of([part])}
        for i, part in enumerate(content)
        if not isinstance(part, ThoughtContent)
    ]


def text_of(content: str | Sequence[Part | ThoughtContent]) -> str:
    """Return content as text. Parts each begin on a new line, and thoughts are left out."""
    if isinstance(content, str):
        return content
    parts = (part for part in content if not isinstance(part, ThoughtContent))
    return "\n".join(part.text if isinstance(part, TextContent) else part.refusal for part in parts)


_DEEPEST = 64  # levels of nesting; templates write values recursively


def arguments_of(value: Any) -> dict[str, Any] | str:
    """Return arguments of an earlier call as an object; as text if they are no object that a
    template can write.

    They are never refused: another model may have written them, or a stream may have been cut, and
    one broken turn must not make all later turns fail.
    """
    if value in (None, ""):
        return {}
    if isinstance(value, str):
        try:
            parsed = parse_json("arguments", value)
        except RequestError:
            parsed = None
        text = value
    else:
        parsed, text = value, json.dumps(value, ensure_ascii=False)
    if isinstance(parsed, dict) and _is_plain(parsed):
        return parsed
    return SURROGATES.sub("\ufffd", text)


def _is_plain(value: Any) -> bool:
    """Whether JSON data is at most `_DEEPEST` levels deep and has no lone surrogates."""
    waiting = [(0, value)]
    while waiting:
        depth, value = waiting.pop()
        if depth > _DEEPEST or (isinstance(value, str) and SURROGATES.search(value)):
            return False
        if isinstance(value, dict):
            waiting += [(depth + 1, inner) for pair in value.items() for inner in pair]
        elif isinstance(value, list):
            waiting += [(depth + 1, inner) for inner in value]
    return True


class CalledFunction(JsonModel):
    name: Annotated[Words, Takes("a tool's name")] = REQUIRED
    arguments: Any = None


class CalledCustom(JsonModel):
    name: Annotated[Words, Takes("a tool's name")] = REQUIRED
    input: str = ""


class EarlierCustomCall(JsonModel):
    """Call of a custom tool in a conversation."""

    id: Words = REQUIRED
    type: Literal["custom"] = REQUIRED
    custom: CalledCustom = REQUIRED

    def called(self) -> tuple[str, dict[str, Any] | str]:
        """Return the tool's name, and the arguments."""
        return self.custom.name, {INPUT: self.custom.input}


class EarlierCall(JsonModel):
    """Call of a function in a conversation."""

    id: Words = REQUIRED
    type: Literal["function"] = REQUIRED
    function: CalledFunction = REQUIRED

    def called(self) -> tuple[str, dict[str, Any] | str]:
        """Return the tool's name, and the arguments."""
        return self.function.name, arguments_of(self.function.arguments)


AnyCall = Annotated[
    Annotated[EarlierCall | EarlierCustomCall, ByField("type")], having("type", "function")
]


class CallBook:
    """Calls of tools in a conversation so far, and the messages for templates that they become."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # of the called tools, by ids of the calls

    def call(self, id: str, name: str, arguments: dict[str, Any] | str) -> Body:
        """Note a call, and return it as an element of `tool_calls`."""
        self._names[id] = name
        function = {"name": name, "arguments": arguments}
        return {"id": id, "type": "function", "function": function}

    def result(
        self, place: str, id: str, content: str | list[Body], field: str | None = None
    ) -> Body:
        """Return the message of a result. Raises `RequestError` if no call before it has the `id`,
        which stands at `place` in the body; `field` is the error's."""
        if id not in self._names:
            raise RequestError(
                f"{place} is {shown(id)}: no call before it has that id", field=field
            )
        return {"role": "tool", "tool_call_id": id, "name": self._names[id], "content": content}


class ChatMessage(JsonModel):
    """Message of a conversation.

    A field that it does not have is refused if it holds a part of the conversation, or may be a
    misspelled name of a missing field. Others are ignored.
    """

    name: Words | None = None

    lost: ClassVar[Mapping[str, str]] = {  # fields that the model would not see; why
        "audio": "this server's models read and write text",
        "images": "images are parts of content",
        "function_call": "use tool_calls",
        "tool_calls": "only an assistant's message has them",
    }

    @classmethod
    def check_names(cls, values: Mapping[str, Any]) -> None:
        missing = cls.model_fields.keys() - values.keys()
        for name, value in values.items():
            if name in cls.model_fields or not value:
                continue
            if reason := cls.lost.get(name):
                raise refused_name(name, f"is {shown(value)}, and would be lost: {reason}")
            if meant := closest(f"{name!s:.40}", missing):
                raise refused_name(name, f"is unknown here; is it {meant}, which is missing?")


class AssistantMessage(ChatMessage):
    role: Literal["assistant"] = REQUIRED
    content: OwnContent | None = None
    tool_calls: Annotated[Each[AnyCall] | None, BeforeValidator(lambda value: value or None)] = None
    refusal: str | None = None


class SystemMessage(ChatMessage):
    role: Literal["system", "developer"] = REQUIRED
    content: Content = REQUIRED


class UserMessage(ChatMessage):
    role: Literal["user"] = REQUIRED
    content: ShownContent = REQUIRED


class ToolMessage(ChatMessage):
    """Result of a tool."""

    role: Literal["tool"] = REQUIRED
    content: ShownContent | None = None
    tool_call_id: Annotated[Words, Takes("the id of a tool call")] = REQUIRED


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage
Messages = Annotated[Several[Annotated[Message, ByField("role")]], Takes("a list of messages")]
_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(Messages)


def messages_of(value: Any, field: str = "messages") -> list[dict[str, Any]]:
    """Return the messages in a body's `field` for the chat template. Raises `RequestError`."""
    return chat_messages(validated(_MESSAGES.validate_python, value, field), field)


def chat_messages(messages: Sequence[Message], field: str = "messages") -> list[dict[str, Any]]:
    """Return the messages for the chat template. Raises `RequestError` for the result of a tool
    whose call is not among the messages before it."""
    book, turns = CallBook(), list[Body]()
    for i, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            place = f"{field}[{i}]"
            content = content_of(message.content or "", f"{place}.content")
            turns.append(book.result(f"{place}.tool_call_id", message.tool_call_id, content))
            continue
        shape: Body = {"role": "system" if message.role == "developer" else message.role}
        if message.name is not None:
            shape["name"] = message.name
        if isinstance(message, UserMessage):
            turns.append(shape | {"content": content_of(message.content, f"{field}[{i}].content")})
            continue
        content = message.content
        if isinstance(message, AssistantMessage):
            content = message.refusal if content is None else content
            if message.tool_calls:
                shape["tool_calls"] = [
                    book.call(call.id, *call.called()) for call in message.tool_calls
                ]
        turns.append(shape | {"content": text_of(content or "")})
    return turns


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
# Most tokens of reasoning by `reasoning_effort`; from "low" on they fill canvases of 256.
EFFORT: dict[Effort, int] = {
    "none": 0,
    "minimal": 64,
    "low": 256,
    "medium": 1024,
    "high": 4096,
    "xhigh": 16_384,
    "max": 65_536,
}
_EFFORT = f"{', '.join(f'{name} {tokens:,}' for name, tokens in EFFORT.items())} tokens at most, \
markers included. The budget overrides the effort"


class TemplateSwitches(ClosedModel):
    enable_thinking: bool | None = None


class ReasoningFields(JsonModel):
    """Fields of a body about reasoning."""

    reasoning_effort: Effort | None = Field(None, description=_EFFORT)
    thinking_token_budget: Annotated[int, Field(ge=0), Takes("0 or more tokens")] | None = Field(
        None, description=_EFFORT
    )
    chat_template_kwargs: TemplateSwitches | None = Field(
        None,
        description="`enable_thinking` switches reasoning on or off, whatever the effort; "
        "a budget of 0 is off",
    )

    @property
    def thinking(self) -> tuple[bool, int | None]:
        """Whether to think, and the most tokens for it; None: all that fit.

        `thinking_token_budget` overrides the budget of `reasoning_effort`. The template's switch
        `enable_thinking` overrides both, unless the budget is 0.
        """
        budget, effort = self.thinking_token_budget, self.reasoning_effort
        if budget is None and effort is not None:
            budget = EFFORT[effort]
        switches = self.chat_template_kwargs
        thinking = switches.enable_thinking if switches is not None else None
        if thinking is None or budget == 0:
            thinking = bool(budget)
        return thinking, budget if thinking else None
