"""Interface of readers of answers with calls: text by text, or token by token."""

from collections.abc import Sequence
from typing import Protocol

from dlm.grammar.calls.answer import Answer, CallDelta


class CallReader(Protocol):
    """Incremental reader of one answer. Raises `InvalidValueError` if a call is malformed."""

    def feed(self, tokens: Sequence[int]) -> list[CallDelta]:
        """Read the next `tokens`; return for each call its name and pieces of its arguments, as far
        as these tokens have them."""
        ...

    @property
    def count(self) -> int:
        """The number of calls that have begun."""
        ...

    @property
    def span(self) -> tuple[int, int] | None:
        """The first and last token of the part of a call that the reader was made to find; None if
        there is no such part."""
        ...

    def end(self) -> list[CallDelta]:
        """End the answer here, which must not be within a call; return what was not certain
        before, as `feed` does."""
        ...

    def answer(self) -> Answer:
        """Return the answer, which ends here."""
        ...
