"""The events of several requests, as they come."""

import asyncio
from collections import deque
from collections.abc import Sequence

from dlm.events import Event
from dlm.serving.stream import EventStream

Told = tuple[int, Event] | None  # of which request; None: nothing happened for a while


class Merged:
    """Ends when all streams have. Closing it closes them, whether anything was read or not."""

    def __init__(self, streams: Sequence[EventStream], silence: float):
        """After so many seconds of `silence` it tells of that."""
        self._streams, self._silence = streams, silence
        self._told: deque[tuple[int, Event]] = deque()
        self._waiting = {asyncio.ensure_future(_next(one)): i for i, one in enumerate(streams)}

    def __aiter__(self) -> "Merged":
        return self

    async def __anext__(self) -> Told:
        while not self._told:
            if not self._waiting:
                raise StopAsyncIteration
            done, _ = await asyncio.wait(
                self._waiting, timeout=self._silence, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                return None
            for task in done:
                self._take(task)
        return self._told.popleft()

    def _take(self, task: "asyncio.Task[Event | None]") -> None:
        i, event = self._waiting.pop(task), task.result()
        if event is not None:
            self._told.append((i, event))
            self._waiting[asyncio.ensure_future(_next(self._streams[i]))] = i

    def close(self) -> None:
        for task in self._waiting:
            task.cancel()
        for stream in self._streams:
            stream.close()


async def _next(stream: EventStream) -> Event | None:
    return await anext(stream, None)
