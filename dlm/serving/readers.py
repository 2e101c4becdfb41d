"""Threads that read bodies and prepare requests, shared among clients in turn.

This module knows neither bodies nor engines.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class Readers:
    """Threads that run functions, for one event loop.

    Each client has a queue of its own, and the clients take turns: one that sends much delays
    others by the functions that run already. A function whose caller has left is not begun.
    """

    def __init__(self, threads: int, name: str):
        self._threads = ThreadPoolExecutor(threads, name)
        self._free = threads
        # Callers that wait, by client; the client whose turn is next comes first.
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def run(self, function: Callable[[], T], client: str = "") -> T:
        """Return what `function` returns; it runs in a thread when it is the turn of `client`."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._queues.setdefault(client, deque()).append(turn)
        self._begin_turns()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(client, turn)
            else:  # its turn had come in the same moment
                self._end_turn()
            raise
        running: Future[T] = self._threads.submit(function)
        running.add_done_callback(partial(self._note_end, loop))
        return await asyncio.wrap_future(running)

    def close(self, wait: bool = False) -> None:
        """Let running functions end, and begin no more. With `wait`, wait for their ends."""
        self._threads.shutdown(wait=wait, cancel_futures=True)

    def _begin_turns(self) -> None:
        while self._free and self._queues:
            client, queue = self._queues.popitem(last=False)
            turn = queue.popleft()
            if queue:
                self._queues[client] = queue  # as the last
            if not turn.done():
                self._free -= 1
                turn.set_result(None)

    def _forget(self, client: str, turn: asyncio.Future[None]) -> None:
        """Remove a caller that has left before its turn."""
        if (queue := self._queues.get(client)) is not None:
            with suppress(ValueError):  # it was about to be passed over
                queue.remove(turn)
            if not queue:
                del self._queues[client]

    def _note_end(self, loop: asyncio.AbstractEventLoop, _: Future[T]) -> None:
        """Note in the event loop that a thread has ended its function."""
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._end_turn)

    def _end_turn(self) -> None:
        self._free += 1
        self._begin_turns()
