"""Stream of one request's events, put and read in one event loop.

This module does not know how requests begin, nor what runs them.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

from dlm.events import Draft, End, Event


class EventStream:
    """Events of one request, for one reader in one event loop. The stream ends after an `End`, or
    when it is closed, which cancels the request.

    Its memory is bounded by the length of an answer: of unread drafts only the last is kept.
    """

    def __init__(
        self,
        number: int,
        drafts: bool,
        leave: Callable[["EventStream"], None],
        arrived: float | None = None,
        client: str = "",
    ):
        """With `drafts`, the stream has drafts too. `leave` is called if it is closed before its
        end. `arrived` is when the request arrived, by `perf_counter`; None: now. `client` is the
        name of the client that sent it."""
        self.number, self.client = number, client
        self.opened = perf_counter()
        self.arrived = self.opened if arrived is None else arrived
        self.last_text: float | None = None  # time of the last text, by `perf_counter`
        self._drafts, self._leave = drafts, leave
        self._events: deque[Event] = deque()
        self._ready = asyncio.Event()
        self._over = False  # no more events come

    def put(self, event: Event) -> None:
        if self._over:
            return
        if isinstance(event, Draft):
            if not self._drafts:
                return
            self._drop_draft()
        self._events.append(event)
        self._over = isinstance(event, End)
        self._ready.set()

    def _drop_draft(self) -> None:
        """Drop the unread draft, if there is one. Committed tokens may have come after it."""
        for place in reversed(range(len(self._events))):
            if isinstance(self._events[place], Draft):
                del self._events[place]
                return

    def close(self) -> None:
        """Drop all unread events; cancel the request unless it has ended."""
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
