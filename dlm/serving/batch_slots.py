"""Slots that rows of batches may take, in turns of their clients.

Rows have at most half of the slots together, and one begins only while another slot stays free.
This module knows neither rows nor batches.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dlm.serving.async_engine import AsyncEngine
from dlm.serving.turns import Turns


class BatchSlots:
    """Slots for rows, in the event loop of an engine."""

    def __init__(self, engine: AsyncEngine):
        self._engine = engine
        slots = engine.engine.slots
        self.most = max(1, slots // 2)  # for all rows together
        self._most_under_way = max(1, slots - 1)  # a row's own request counts
        self._taken = 0
        self._entering = 0  # rows whose slots are taken, and that have not gone on
        self._turns = Turns()
        self._giver: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def slot(self, client: str) -> AsyncIterator[None]:
        """Wait for a slot, which is kept until the end of the context. The body has to begin with
        work of the engine, which then counts it."""
        turn = self._turns.join(client)
        if self._giver is None:
            self._giver = asyncio.ensure_future(self._give_always())
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            if not self._turns.leave(client, turn):
                self._entering -= 1
                self._leave()
            raise
        self._entering -= 1
        try:
            yield
        finally:
            self._leave()

    def close(self) -> None:
        """Give no more slots."""
        if self._giver is not None:
            self._giver.cancel()

    async def _give_always(self) -> None:
        while True:
            self._give()
            await self._engine.until_fewer()

    def _give(self) -> None:
        while (
            self._taken < self.most
            and self._engine.under_way + self._entering < self._most_under_way
            and self._turns.give()
        ):
            self._taken += 1
            self._entering += 1

    def _leave(self) -> None:
        self._taken -= 1
        self._give()
