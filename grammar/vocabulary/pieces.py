"""The bytes of tokens, and the control tokens with a meaning, as readers of answers need them.

The module needs neither numpy nor a tokenizer: a `VocabularySlice` is read in other processes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol


@dataclass(frozen=True, slots=True)
class Markers:
    """The tokens that open reasoning, and those that close it."""

    open: tuple[int, ...]
    close: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GemmaMarkers:
    """The control tokens that open and close a call of Gemma's form, and quote its strings."""

    form: ClassVar[str] = "gemma4"  # its name in `MARKUPS`

    open: int
    close: int
    quote: int


@dataclass(frozen=True, slots=True)
class MistralMarkers:
    """The control tokens before a call of Mistral's form, and before its arguments."""

    form: ClassVar[str] = "mistral"
    names: ClassVar[tuple[str, ...]] = "[TOOL_CALLS]", "[ARGS]"  # of these tokens

    open: int
    arguments: int


@dataclass(frozen=True, slots=True)
class MistralListMarkers:
    """The control token before a list of calls, as Mistral's earlier models write them."""

    form: ClassVar[str] = "mistral_list"
    names: ClassVar[tuple[str, ...]] = ("[TOOL_CALLS]",)

    open: int


CallMarkers = GemmaMarkers | MistralMarkers | MistralListMarkers
"""The control tokens of a form of calls."""

ANY_MARKERS: dict[type[CallMarkers] | None, CallMarkers] = {
    type(markers): markers
    for markers in (GemmaMarkers(0, 1, 2), MistralMarkers(0, 1), MistralListMarkers(0))
}
"""Control tokens, by their class, for rules that are only checked."""


class TokenPieces(Protocol):
    """The tokens of an answer, as its reader needs them."""

    @property
    def pieces(self) -> Sequence[bytes] | Mapping[int, bytes]:
        """The bytes of each token; b"" for control tokens."""
        ...

    @property
    def control(self) -> frozenset[int]:
        """The control tokens."""
        ...

    @property
    def call(self) -> CallMarkers | None:
        """The control tokens of the model's calls; None: they have none."""
        ...

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of `tokens` without control tokens; U+FFFD replaces invalid UTF-8."""
        ...


@dataclass(frozen=True, slots=True)
class VocabularySlice:
    """The part of a vocabulary that is needed to read one answer. It is quick to pickle."""

    pieces: dict[int, bytes]  # by token; b"" for control tokens
    control: frozenset[int]
    call: CallMarkers | None

    @classmethod
    def of(cls, vocabulary: TokenPieces, tokens: Sequence[int]) -> "VocabularySlice":
        pieces = {token: vocabulary.pieces[token] for token in tokens}
        return cls(pieces, vocabulary.control.intersection(tokens), vocabulary.call)

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of `tokens` without control tokens; U+FFFD replaces invalid UTF-8."""
        return b"".join(self.pieces[token] for token in tokens).decode("utf-8", "replace")
