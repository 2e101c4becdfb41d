"""Blocks of content in Anthropic's form that the model is shown: texts and images.

A document or a search result becomes its text between two tags, after lines of its title, its
context or its source. Only documents of text are served: a file or an address is refused.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from dlm.openai.body import REQUIRED, Body, ByField, Each, JsonModel, Takes
from dlm.openai.images import image_file, image_part


class TextBlock(JsonModel):
    type: Literal["text"] = REQUIRED
    text: str = REQUIRED


def block_lines(content: str | Sequence[TextBlock]) -> str:
    """Return the text of content; each block begins on a new line."""
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


class TextSource(JsonModel):
    type: Literal["text"] = REQUIRED
    media_type: Literal["text/plain"] = REQUIRED
    data: str = REQUIRED

    @property
    def text(self) -> str:
        return self.data


class ContentSource(JsonModel):
    type: Literal["content"] = REQUIRED
    content: Annotated[
        str | Each[TextBlock],
        Takes("text, or a list of blocks of text"),
    ] = REQUIRED

    @property
    def text(self) -> str:
        return block_lines(self.content)


class CitationOptions(JsonModel):
    enabled: Annotated[Literal[False], Takes("false, since answers cite nothing")] | None = None


_SOURCE = ByField("type", "text or content: this server's models read no files")


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
        return _tagged(self.type, head, block_lines(self.content))


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


def _tagged(tag: str, head: Mapping[str, str | None], text: str) -> str:
    lines = [f"{name}: {value}" for name, value in head.items() if value]
    return "\n".join([f"<{tag}>", *lines, *([""] if lines else []), text, f"</{tag}>"])


ShownBlock = TextBlock | DocumentBlock | SearchResultBlock | SummaryBlock
