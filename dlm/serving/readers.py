"""Threads that read bodies and prepare requests, shared among clients in turn.

This module knows neither bodies nor engines.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from dlm.serving.turns import Turns

T = TypeVar("T")


class Readers:
    """Threads that run functions, for one event loop.

    Clients take turns (`Turns`): one that sends much delays others by the functions that run
    already. A function whose caller has left is not begun.
    """

    def __init__(self, threads: int, name: str):
        self._threads = ThreadPoolExecutor(threads, name)
        self._free = threads
        self._turns = Turns()

    async def run(self, function: Callable[[], T], client: str = "") -> T:
        """Return what `function` returns; it runs in a thread when it is the turn of `client`."""
        loop = asyncio.get_running_loop()
        turn = self._turns.join(client)
        self._begin_turns()
        try:
            await turn
        except asyncio.CancelledError:
            if not self._turns.leave(client, turn):
                self._end_turn()
            raise
        running: Future[T] = self._threads.submit(function)
        running.add_done_callback(partial(self._note_end, loop))
        return await asyncio.wrap_future(running)

    def close(self, wait: bool = False) -> None:
        """Let running functions end, and begin no more. With `wait`, wait for their ends."""
        self._threads.shutdown(wait=wait, cancel_futures=True)

    def _begin_turns(self) -> None:
        while self._free and self._turns.give():
            self._free -= 1

    def _note_end(self, loop: asyncio.AbstractEventLoop, _: Future[T]) -> None:
        """Note in the event loop that a thread has ended its function."""
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._end_turn)

    def _end_turn(self) -> None:
        self._free += 1
        self._begin_turns()
