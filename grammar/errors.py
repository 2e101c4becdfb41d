"""The errors of `grammar`."""

from collections.abc import Sequence
from typing import Any

from dlm.root_error import DlmError


class GrammarError(DlmError):
    """The base class of this package's errors."""


class InvalidGrammarError(GrammarError, ValueError):
    """A constraint that does not compile, with its kind, the place, and the reason."""

    def __init__(self, kind: str, reason: str, where: str = ""):
        super().__init__(f"{kind}{f' at {where}' if where else ''}: {reason}")
        self.kind, self.reason, self.where = kind, reason, where

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, self.reason, self.where)


class InvalidValueError(GrammarError, ValueError):
    """A finished text that its schema or spec refuses."""

    def __init__(
        self,
        message: str,
        path: Sequence[str | int] = (),
        span: tuple[int, int] | None = None,
    ):
        """`path` leads to the wrong part of the value. `span` holds the first and the last token
        of that part in the answer; None: unknown."""
        super().__init__(message)
        self.path, self.span = tuple(path), span

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.path, self.span)


class UncheckableError(GrammarError):
    """A value that cannot be checked against its schema."""


class Unfinished(GrammarError):  # noqa: N818  # a request for more time, not an error
    """The work allowed for this step ran out. A second call continues where it stopped."""


class LimitError(GrammarError, ValueError):
    """A task takes more processor time or memory than its limit."""


class CrashError(GrammarError):
    """A worker process ended, or failed through no fault of the user."""


class DeadEndError(GrammarError):
    """The text is not complete, but no token of the vocabulary can continue it."""


class BudgetError(GrammarError, ValueError):
    """The shortest text that the grammar accepts exceeds the budget; `needed` tokens suffice.

    If the search for fewer tokens was cut off, fewer may suffice.
    """

    def __init__(self, message: str, needed: int):
        super().__init__(message)
        self.needed = needed
