"""Blocks of content in Anthropic's form that the model is shown as text.

A document or a search result becomes its text between two tags, after lines of its title, its
context or its source. Only texts are served: a file or an address is refused.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from dlm.openai.body import REQUIRED, ByField, Each, JsonModel, Takes


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


def _tagged(tag: str, head: Mapping[str, str | None], text: str) -> str:
    lines = [f"{name}: {value}" for name, value in head.items() if value]
    return "\n".join([f"<{tag}>", *lines, *([""] if lines else []), text, f"</{tag}>"])


ShownBlock = TextBlock | DocumentBlock | SearchResultBlock | SummaryBlock
