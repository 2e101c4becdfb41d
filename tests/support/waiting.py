"""Time that a test waits for another thread, process or task."""

import asyncio
import time
from collections.abc import Callable

PATIENCE = 600.0  # seconds: what takes longer hangs, however busy the machine is


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():
            await asyncio.sleep(0.001)
