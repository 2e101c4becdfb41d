"""What `grammar` raises on purpose."""

from collections.abc import Sequence
from typing import Any

from dlm.root_error import DlmError


class GrammarError(DlmError):
    """Base class of this package's errors: catch it to catch them all."""


class InvalidGrammarError(GrammarError, ValueError):
    """A constraint that does not compile. The user's to fix: it says what, where, and why."""

    def __init__(self, kind: str, reason: str, where: str = ""):
        super().__init__(f"{kind}{f' at {where}' if where else ''}: {reason}")
        self.kind, self.reason, self.where = kind, reason, where

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, self.reason, self.where)


class InvalidValueError(GrammarError, ValueError):
    """A text that is no value of its schema."""

    def __init__(
        self,
        message: str,
        path: Sequence[str | int] = (),
        span: tuple[int, int] | None = None,
    ):
        """`path` leads to the part of the value that is wrong. `span` is where that part is, in an
        answer of which tokens were read: its first token and its last; None: it is not known."""
        super().__init__(message)
        self.path, self.span = tuple(path), span

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.path, self.span)


class Unfinished(GrammarError):  # noqa: N818  # no error: it asks for more time
    """A look ran out of its work for this step; asking again goes on where it stopped."""


class LimitError(GrammarError, ValueError):
    """It takes more than its limit: of the processor, of memory."""


class CrashError(GrammarError):
    """Work in a process of its own ended that process, or failed by no fault of the user's."""


class DeadEndError(GrammarError):
    """The grammar goes on, but no token of the vocabulary does."""


class BudgetError(GrammarError, ValueError):
    """The shortest text that the grammar accepts is too long; `needed` tokens would do.

    Fewer may do where there is too much to look at: then it is the text of the fewest bytes.
    """

    def __init__(self, message: str, needed: int):
        super().__init__(message)
        self.needed = needed
