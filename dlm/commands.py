"""Commands of other threads to an engine: each is executed at once, or before the next step if one
is under way."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

Command = Callable[[], None]


class CommandQueue:
    """Queue of commands, in their order. None is executed while a step is under way."""

    def __init__(self):
        self._moving = Lock()
        self._posted: deque[Command] = deque()

    def __bool__(self) -> bool:
        """Whether a command waits for the end of a step."""
        return bool(self._posted)

    def post(self, command: Command) -> None:
        """Execute `command`, or leave it to the thread that steps. Never waits."""
        self._posted.append(command)
        if self._moving.acquire(blocking=False):
            try:
                self._execute_all()
            finally:
                self._moving.release()

    @contextmanager
    def move(self) -> Iterator[None]:
        """Execute all earlier commands, then hold later ones back for the duration of a step."""
        with self._moving:
            self._execute_all()
            yield

    def _execute_all(self) -> None:
        while self._posted:
            self._posted.popleft()()
