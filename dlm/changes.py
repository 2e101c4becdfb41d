"""What any thread may ask of what one thread moves: done at once, or before its next move."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

Change = Callable[[], None]


class Changes:
    """Changes in the order in which they were posted. None is made while a move is under way."""

    def __init__(self):
        self._moving = Lock()
        self._posted: deque[Change] = deque()

    def __bool__(self) -> bool:
        """Some change waits for the end of a move."""
        return bool(self._posted)

    def post(self, change: Change) -> None:
        """Make `change`, or leave it to the thread that is moving. Never waits."""
        self._posted.append(change)
        if self._moving.acquire(blocking=False):
            try:
                self._make()
            finally:
                self._moving.release()

    @contextmanager
    def move(self) -> Iterator[None]:
        """A move, once all that was posted before has been made."""
        with self._moving:
            self._make()
            yield

    def _make(self) -> None:
        while self._posted:
            self._posted.popleft()()
