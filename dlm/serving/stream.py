"""The events of one request, for one reader in an event loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

from dlm.events import Draft, End, Event


class EventStream:
    """Ends after an `End`, or when it is closed, which cancels the request.

    Belongs to one event loop. Its memory is bounded by what a request can say: of drafts that
    nobody has read, only the last of a run is kept.
    """

    def __init__(
        self,
        number: int,
        prompt_tokens: int,
        drafts: bool,
        leave: Callable[["EventStream"], None],
        arrived: float | None = None,
        client: str = "",
    ):
        """With `drafts` it tells of those too. `leave` is called where it is closed too early.
        `arrived` is when the request did, by `perf_counter`; None: now. `client` sent it."""
        self.number, self.prompt_tokens = number, prompt_tokens
        self.client = client
        self.opened = perf_counter()
        self.arrived = self.opened if arrived is None else arrived
        self.last_text: float | None = None  # when text was last told, by `perf_counter`
        self._drafts, self._leave = drafts, leave
        self._events: deque[Event] = deque()
        self._ready = asyncio.Event()
        self._over = False  # nothing comes any more

    def put(self, event: Event) -> None:
        if self._over:
            return
        if isinstance(event, Draft):
            if not self._drafts:
                return
            if self._events and isinstance(self._events[-1], Draft):
                self._events.pop()
        self._events.append(event)
        self._over = isinstance(event, End)
        self._ready.set()

    def close(self) -> None:
        """The reader goes away; nothing is left to read."""
        self._events.clear()
        if not self._over:
            self._over = True
            self._leave(self)
        self._ready.set()

    def __aiter__(self) -> "EventStream":
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._over:
                raise StopAsyncIteration
            self._ready.clear()
            await self._ready.wait()
        return self._events.popleft()
