"""What of a vocabulary is needed to read one answer: it goes to another process quickly.

Control tokens that a grammar has to know by their ids.

How far two texts of tokens are the same.
"""

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
    """Control tokens that open and close a tool call, and quote a string within it."""

    open: int
    close: int
    quote: int


@dataclass(frozen=True, slots=True)
class VocabularySlice:
    """Stands in for a `Vocabulary` where a `Spec` reads some tokens."""

    pieces: dict[int, bytes]  # by token; b"" for control tokens
    control: frozenset[int]
    call: CallMarkers | None

    @classmethod
    def of(cls, vocabulary: "Vocabulary", tokens: Sequence[int]) -> "VocabularySlice":
        pieces = {token: vocabulary.pieces[token] for token in tokens}
        control = frozenset(vocabulary.control.intersection(tokens))
        return cls(pieces, control, vocabulary.call)

    def text(self, tokens: Sequence[int]) -> str:
        """What `tokens` say, without control tokens; U+FFFD stands for bytes that are no UTF-8."""
        return b"".join(self.pieces[token] for token in tokens).decode("utf-8", "replace")


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)
