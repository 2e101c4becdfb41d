"""Routes of events to their readers, and commands of other threads to the one that steps.

Events of a step go to the streams of single requests, the others to the caller of `step`. A command
is executed at once, or before the next step if one is under way.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Protocol

from dlm.admission import Prepared
from dlm.errors import DlmError, RequestError
from dlm.events import Committed, Draft, Event, Failed, Finished
from dlm.request import Request

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


StreamEvent = Draft | Committed | Finished
"""Event of a streamed request: `Failed` is raised instead, and `Decided` is for decisions."""


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


class Admits(Protocol):
    """Interface of an engine for streams."""

    def prepare(self, request: Request) -> Prepared: ...
    def start(self, prepared: Prepared) -> None: ...
    def cancel(self, number: int) -> None: ...


def streamed(engine: Admits, routes: EventRoutes, request: Request) -> Iterator[StreamEvent]:
    """Yield the events of `request` until it has finished, running steps while there are none. The
    request is admitted at the first `next`, and cancelled when the iterator is closed before its
    end. Raises what `Engine.add` raises, and the error of `Failed`."""
    if not isinstance(request, Request):
        raise RequestError(f"stream is given a {type(request).__name__}: it takes a Request")
    prepared = engine.prepare(request)
    number = prepared.number
    queue = routes.open(number)
    try:
        engine.start(prepared)
        while True:
            while not queue:
                routes.advance()
            event = queue.popleft()
            if isinstance(event, Failed):
                raise event.error
            if not isinstance(event, StreamEvent):
                raise TypeError(f"a request ended as {type(event).__name__}")
            yield event
            if isinstance(event, Finished):
                return
    finally:
        engine.cancel(number)
        routes.close(number)
