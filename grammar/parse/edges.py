"""The edges of a recursive transition network. Tuples: thousands come from another process."""

from typing import NamedTuple


class Read(NamedTuple):
    """A text of a terminal, of `low` to `high` characters."""

    terminal: int
    to: int
    low: int = 0
    high: int | None = None


class ReadToken(NamedTuple):
    """One control token: one of `ids`, or, not `listed`, one that is none of them."""

    ids: frozenset[int]
    listed: bool
    to: int

    def takes(self, token: int) -> bool:
        return (token in self.ids) is self.listed


class Follow(NamedTuple):
    """A whole rule, at least `low` times; `high` is None without a bound."""

    rule: int
    to: int
    low: int = 1
    high: int | None = 1
    round: bool = False  # one of a repetition: what is empty does not count as one

    @property
    def once(self) -> bool:
        return self.low == self.high == 1


class Epsilon(NamedTuple):
    to: int


Edge = Read | ReadToken | Follow | Epsilon
