"""Server process: it listens, bounds what connections may take, and finishes what it has begun.

uvicorn closes its sockets at the first signal. Here they stay open while requests finish, so that
clients that ask meanwhile get a 503, with which load balancers go elsewhere.
"""

import asyncio
import logging
import socket
import sys
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.config import STARTUP_FAILURE

from dlm.serving.app import Service
from dlm.serving.listener import Listener, listening
from dlm.serving.protocol import BoundedProtocol, Connections, Limits

IDLE_SECONDS = 90  # that a connection is kept without a request, as Ray Serve keeps it: clients and
# load balancers let go earlier, so that none sends a request into a connection being closed
_LOG = logging.getLogger("uvicorn.error")


class DrainingServer(uvicorn.Server):
    """The first signal drains, for `shutdown_timeout` seconds at most; the second ends what runs;
    further ones are uvicorn's."""

    def __init__(
        self,
        config: uvicorn.Config,
        service: Service,
        shutdown_timeout: float,
        connections: Connections,
        limits: Limits | None = None,
        parting_seconds: float = 2.0,
    ):
        """`limits` are those of a connection, `connections` counts them. `parting_seconds` is how
        long clients may take to read the ends of their answers when everything else is over."""
        super().__init__(config)
        self._service, self._timeout = service, shutdown_timeout
        self._connections, self._limits = connections, limits or Limits()
        self._parting_seconds = parting_seconds
        self._draining: asyncio.Task[None] | None = None
        self._signals = 0

    async def serve(self, *args: Any, **more: Any) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(*args, **more)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, with listeners that make room before they accept."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)
        config = self.config
        if sockets is None:
            try:
                sockets = listening(config.host, config.port, config.uds, config.backlog)
            except OSError as error:
                _LOG.error(error)
                await self.lifespan.shutdown()
                sys.exit(STARTUP_FAILURE)
            self._log_started_message(sockets)
        make = partial(
            BoundedProtocol,
            self._limits,
            self._connections,
            config=config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        more = self._connections, config.ssl, self._limits.head_seconds
        self.servers: list[Any] = [Listener(one, make, *more) for one in sockets]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all connections: idle ones at once, others when their answers are read."""
        parting = self._loop.call_later(self._parting_seconds, self._abort)
        try:
            await super().shutdown(sockets)
        finally:
            parting.cancel()

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
        self._service.guard.drain()
        try:
            await self._service.engine.drain(self._timeout)
        except asyncio.CancelledError:
            await self._service.engine.drain(0)
        finally:
            self.should_exit = True

    def _abort(self) -> None:
        """Close connections whose clients do not read the ends of their answers."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
