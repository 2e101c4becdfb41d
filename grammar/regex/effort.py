"""A limit on what automata may take to make, for a caller that cannot wait.

Every construction has limits of its own, of about a second. A limit here is for all that is made
within a block of the program, however many patterns that are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_left: ContextVar[list[int] | None] = ContextVar("left", default=None)


class TooMuchEffortError(Exception):
    """The automata take longer than the caller waits. It says nothing about a pattern."""


@contextmanager
def at_most(steps: int) -> Iterator[None]:
    """Let automata be made in this thread for `steps` steps of about 3 us.

    Then a construction raises `TooMuchEffortError`. What is remembered takes no step.
    """
    token = _left.set([steps])
    try:
        yield
    finally:
        _left.reset(token)


def spend(steps: int) -> None:
    """Count steps of a construction."""
    left = _left.get()
    if left is not None:
        left[0] -= steps
        if left[0] < 0:
            raise TooMuchEffortError
