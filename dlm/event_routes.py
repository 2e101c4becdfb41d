"""Routes of events: those of a streamed request go to its stream, all others to the caller of
`Engine.step`."""

from collections import deque
from collections.abc import Iterable
from functools import partial

from dlm.commands import CommandQueue
from dlm.errors import DlmError
from dlm.events import Event, Failed


class EventRoutes:
    """Events of past steps, until they are read."""

    def __init__(self, commands: CommandQueue):
        """`commands` holds commands back while a step is under way."""
        self._commands = commands
        self._streams: dict[int, deque[Event]] = {}  # by request
        self._others: list[Event] = []

    def __bool__(self) -> bool:
        """Whether an event waits for `take`."""
        return bool(self._others)

    def sort(self, events: Iterable[Event]) -> None:
        """Give each of `events` to the stream of its request, or keep it for `take`."""
        for event in events:
            self._streams.get(event.request, self._others).append(event)

    def take(self) -> list[Event]:
        """Return the events that no stream reads, and keep them no longer."""
        events, self._others = self._others, []
        return events

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
