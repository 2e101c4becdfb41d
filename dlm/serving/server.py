"""Runs the application until it is told to stop, and lets it finish what it has begun.

uvicorn closes its sockets at the first signal. Here they stay open while requests finish, so that
who asks meanwhile is told so: 503, with which load balancers go elsewhere.
"""

import asyncio
from types import FrameType
from typing import Any

import uvicorn

from dlm.serving.app import Service

IDLE_SECONDS = 90  # that a connection is kept without a request, as Ray Serve keeps it: clients and
# load balancers let go earlier, so that none sends a request into a connection being closed


class DrainingServer(uvicorn.Server):
    """The first signal drains, for `shutdown_timeout` seconds at most; the second ends what runs;
    further ones are uvicorn's."""

    def __init__(self, config: uvicorn.Config, service: Service, shutdown_timeout: float):
        super().__init__(config)
        self._service, self._timeout = service, shutdown_timeout
        self._draining: asyncio.Task[None] | None = None
        self._signals = 0

    async def serve(self, *args: Any, **more: Any) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(*args, **more)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._signals += self.started
        if self._signals == 1:
            self._loop.call_soon_threadsafe(self._begin_draining)
        elif self._signals == 2:
            self._loop.call_soon_threadsafe(self._hurry)
        else:
            super().handle_exit(sig, frame)

    def _begin_draining(self) -> None:
        self._draining = self._loop.create_task(self._drain())

    def _hurry(self) -> None:
        if self._draining is not None:
            self._draining.cancel()

    async def _drain(self) -> None:
        try:
            await self._service.engine.drain(self._timeout)
        except asyncio.CancelledError:
            await self._service.engine.drain(0)
        finally:
            self.should_exit = True
