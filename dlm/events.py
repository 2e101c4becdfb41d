"""Events of `Engine.step`: drafts that may change, text that cannot, and ends; and their readers.

Events of a step go to the streams of single requests, the others to the caller of `step`. A command
of another thread is executed at once, or before the next step if one is under way.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

from dlm.errors import DlmError
from dlm.request import Result, Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Canvas between two passes: `L` positions."""

    request: int
    step: int  # passes over this canvas so far
    entropy: float  # mean nats per scored position
    tokens: list[int]  # [L] the guess
    accepted: list[bool]  # [L] whether it is kept on the canvas; the others are noise
    pinned: int  # number of leading positions that the constraint has fixed
    suspect: int  # the first position predicted under a wrong left context; L: none
    passes: int  # over all canvases of the request so far
    repairs: int  # those in which the grammar refused the model's own choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Final tokens and text: pinned on a canvas, or committed. They follow those of earlier events.
    `text` and `reasoning` hold whole characters, so they may hold less than `tokens` do."""

    request: int
    tokens: list[int]  # including markers and the stop token
    text: str  # of the answer
    reasoning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    request: int
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """End of a request by an error; other requests are not affected."""

    request: int
    error: DlmError


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """End of a decision: all its questions are answered."""

    request: int
    answers: list[Any]  # each a `QuestionAnswer`, in the order of the questions
    stats: Stats  # of all questions together


End = Finished | Decided | Failed
"""Last event of a request or of a decision."""

Event = Draft | Committed | End

StreamEvent = Draft | Committed | Finished
"""Event of a streamed request: `Failed` is raised instead, and `Decided` is for decisions."""

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


class EventRoutes:
    """Runner of steps that keeps events until they are read."""

    def __init__(self, commands: CommandQueue, step: Callable[[], list[Event]]):
        """`step` runs while `commands` holds commands back, and returns its events."""
        self._commands, self._step = commands, step
        self._streams: dict[int, deque[Event]] = {}  # by request
        self._others: list[Event] = []

    def __bool__(self) -> bool:
        """Whether an event waits for `step`."""
        return bool(self._others)

    def step(self) -> list[Event]:
        """Run one step and return the events that no stream reads, earlier ones included."""
        with self._commands.move():
            self._sort(self._step())
            events, self._others = self._others, []
            return events

    def advance(self) -> None:
        """Run one step and keep its events for those who read them."""
        with self._commands.move():
            self._sort(self._step())

    def open(self, number: int) -> deque[Event]:
        """Return a queue that gets the events of request `number` from now on."""
        return self._streams.setdefault(number, deque())

    def close(self, number: int) -> None:
        """Drop the events of request `number`, which has ended or been cancelled."""
        self._streams[number] = deque(maxlen=0)  # a step that is under way may have some
        self._commands.post(partial(self._forget, number))

    def _forget(self, number: int) -> None:
        self._streams.pop(number, None)

    def cancel(self, number: int) -> None:
        """End the stream of request `number`, if there is one, with an error."""
        if (queue := self._streams.get(number)) is not None:
            queue.append(Failed(request=number, error=DlmError("the request was cancelled")))

    def _sort(self, events: list[Event]) -> None:
        for event in events:
            self._streams.get(event.request, self._others).append(event)
