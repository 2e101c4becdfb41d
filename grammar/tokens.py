"""Control tokens that grammars name, and a slice of a vocabulary that reads one answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlm.grammar.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Markers:
    """The tokens that open reasoning, and those that close it."""

    open: tuple[int, ...]
    close: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CallMarkers:
    """The control tokens that open and close a tool call, and quote a string within it."""

    open: int
    close: int
    quote: int


@dataclass(frozen=True, slots=True)
class VocabularySlice:
    """The part of a `Vocabulary` that a `Spec` needs to read an answer. It is quick to pickle."""

    pieces: dict[int, bytes]  # by token; b"" for control tokens
    control: frozenset[int]
    call: CallMarkers | None

    @classmethod
    def of(cls, vocabulary: "Vocabulary", tokens: Sequence[int]) -> "VocabularySlice":
        pieces = {token: vocabulary.pieces[token] for token in tokens}
        control = frozenset(vocabulary.control.intersection(tokens))
        return cls(pieces, control, vocabulary.call)

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of `tokens` without control tokens; U+FFFD replaces invalid UTF-8."""
        return b"".join(self.pieces[token] for token in tokens).decode("utf-8", "replace")


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of equal leading tokens."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)
