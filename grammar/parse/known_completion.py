"""A completion that is known to fit the budget, from one position of a text on."""

from typing import NamedTuple, Self


class KnownCompletion(NamedTuple):
    """A completion of a text, without its stop, or the beginning of one."""

    position: int  # tokens of the text before it
    tokens: list[int]  # its tokens, after some that were written
    written: int  # the number of those
    within: int  # tokens that are enough for all that is left of it

    @property
    def next(self) -> int | None:
        """The next token; None: only the stop is left."""
        return self.tokens[self.written] if self.written < len(self.tokens) else None

    def after(self, token: int) -> Self | None:
        """Return what is left of it after `token`; None if it goes on otherwise, or is unknown."""
        remaining = len(self.tokens) - self.written
        if self.next != token or remaining == 1 < self.within:
            return None
        return self._replace(
            position=self.position + 1, written=self.written + 1, within=self.within - 1
        )
