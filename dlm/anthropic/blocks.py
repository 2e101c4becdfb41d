"""Blocks of content in `/v1/messages`, and what a chat shows of them: text, or text and images.

A document or a search result becomes its text between two tags, after lines of its title, its
context or its source. Only documents of text are served: a file or an address is refused.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from dlm.openai.body import REQUIRED, Body, ByField, Each, JsonModel, Takes, Words
from dlm.openai.messages import image_file, image_part


class TextBlock(JsonModel):
    type: Literal["text"] = REQUIRED
    text: str = REQUIRED


class TextSource(JsonModel):
    type: Literal["text"] = REQUIRED
    media_type: Literal["text/plain"] = REQUIRED
    data: str = REQUIRED

    @property
    def text(self) -> str:
        return self.data


class ContentSource(JsonModel):
    type: Literal["content"] = REQUIRED
    content: Annotated[str | Each[TextBlock], Takes("text, or a list of blocks of text")] = REQUIRED

    @property
    def text(self) -> str:
        return text_of(self.content)


class CitationOptions(JsonModel):
    enabled: Annotated[Literal[False], Takes("false (answers cite nothing)")] | None = None


_SOURCE = ByField("type", "text or content (this server's models read no files)")


class DocumentBlock(JsonModel):
    type: Literal["document"] = REQUIRED
    source: Annotated[TextSource | ContentSource, _SOURCE] = REQUIRED
    title: str | None = None
    context: str | None = None
    citations: CitationOptions | None = None

    @property
    def text(self) -> str:
        return _tagged(self.type, {"Title": self.title, "Context": self.context}, self.source.text)


class SearchResultBlock(JsonModel):
    """Result of a client's own search."""

    type: Literal["search_result"] = REQUIRED
    source: str = REQUIRED
    title: str = REQUIRED
    content: Each[TextBlock] = REQUIRED
    citations: CitationOptions | None = None

    @property
    def text(self) -> str:
        head = {"Title": self.title, "Source": self.source}
        return _tagged(self.type, head, text_of(self.content))


class SummaryBlock(JsonModel):
    """Text that stands for earlier turns, which its client has left out."""

    type: Literal["compaction"] = REQUIRED
    content: str | None = None  # None: nothing was left out

    @property
    def text(self) -> str:
        return self.content or ""


class EncodedSource(JsonModel):
    type: Literal["base64"] = REQUIRED
    media_type: str | None = None
    data: str = REQUIRED


class UrlSource(JsonModel):
    type: Literal["url"] = REQUIRED
    url: str = REQUIRED


class ImageBlock(JsonModel):
    """Image of a user, or in the result of a tool."""

    type: Literal["image"] = REQUIRED
    source: Annotated[EncodedSource | UrlSource, ByField("type")] = REQUIRED

    def part(self, place: str) -> Body:
        """Return the part of a chat's message; `place` is the block's. Raises `RequestError`."""
        match self.source:
            case UrlSource(url=url):
                return image_part(url, f"{place}.source.url")
            case EncodedSource(data=data):
                return {"type": "image", "image": image_file(data, f"{place}.source.data")}


class ReferenceBlock(JsonModel):
    """Name of a tool that a search for tools has found."""

    type: Literal["tool_reference"] = REQUIRED
    tool_name: str = REQUIRED

    @property
    def text(self) -> str:
        return self.tool_name


class UseBlock(JsonModel):
    """Call of a tool."""

    type: Literal["tool_use"] = REQUIRED
    id: Words = REQUIRED
    name: Words = REQUIRED
    input: Any = None


class OmittedBlock(JsonModel):
    """Block that the model is not shown: earlier reasoning, and work of tools of other servers."""

    type: Literal[
        "thinking",
        "redacted_thinking",
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
    ] = REQUIRED


BLOCKS = Takes("text, or a list of blocks")
TextContent = Annotated[str | Each[Annotated[TextBlock | OmittedBlock, ByField("type")]], BLOCKS]
ResultContent = Annotated[
    str
    | Each[
        Annotated[
            TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ReferenceBlock,
            ByField("type", "text, image, document or search_result"),
        ]
    ],
    BLOCKS,
]


class ResultBlock(JsonModel):
    """Result of a tool."""

    type: Literal["tool_result"] = REQUIRED
    tool_use_id: Words = REQUIRED
    content: ResultContent = ""
    is_error: bool | None = None


TextualBlock = TextBlock | DocumentBlock | SearchResultBlock | SummaryBlock
Block = TextualBlock | ImageBlock | UseBlock | ResultBlock | OmittedBlock


def as_error(content: str | list[Body]) -> str | list[Body]:
    """Return the content of a result that is an error."""
    if isinstance(content, str):
        return f"Error: {content}"
    if content[0]["type"] == "text":
        return [{"type": "text", "text": f"Error: {content[0]['text']}"}, *content[1:]]
    return [{"type": "text", "text": "Error:"}, *content]


def content_of(content: str | Sequence[Block | ReferenceBlock], where: str) -> str | list[Body]:
    """Return the text of content, or text and images as parts of a chat's message."""
    if isinstance(content, str) or not any(isinstance(block, ImageBlock) for block in content):
        return text_of(content)
    return [
        block.part(f"{where}[{i}]")
        if isinstance(block, ImageBlock)
        else {"type": "text", "text": text_of([block])}
        for i, block in enumerate(content)
        if isinstance(block, ImageBlock) or text_of([block])
    ]


def text_of(content: str | Sequence[Block | ReferenceBlock]) -> str:
    """Return the text of content; each block begins on a new line."""
    if isinstance(content, str):
        return content
    texts = (block.text for block in content if isinstance(block, TextualBlock | ReferenceBlock))
    return "\n".join(texts)


def _tagged(tag: str, head: Mapping[str, str | None], text: str) -> str:
    lines = [f"{name}: {value}" for name, value in head.items() if value]
    return "\n".join([f"<{tag}>", *lines, *([""] if lines else []), text, f"</{tag}>"])
