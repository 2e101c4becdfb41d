"""What of a vocabulary is needed to read one answer: it goes to another process quickly."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlm.grammar.markers import CallMarkers

if TYPE_CHECKING:
    from dlm.grammar.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Stands in for a `Vocabulary` where a `Spec` reads some tokens."""

    pieces: dict[int, bytes]  # by token; b"" for control tokens
    control: frozenset[int]
    call: CallMarkers | None

    @classmethod
    def of(cls, vocabulary: "Vocabulary", tokens: Sequence[int]) -> "Excerpt":
        pieces = {token: vocabulary.pieces[token] for token in tokens}
        control = frozenset(vocabulary.control.intersection(tokens))
        return cls(pieces, control, vocabulary.call)

    def text(self, tokens: Sequence[int]) -> str:
        """What `tokens` say, without control tokens; U+FFFD stands for bytes that are no UTF-8."""
        return b"".join(self.pieces[token] for token in tokens).decode("utf-8", "replace")
