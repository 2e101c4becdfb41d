"""Server process that listens, bounds connections, and finishes requests before it exits.

uvicorn closes its sockets at the first signal. Here they stay open while requests finish: new
requests get a 503, at which load balancers choose another server.
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

# How long a connection is kept without a request, as by Ray Serve. Clients and load balancers close
# theirs earlier, so that none sends a request into a connection that is being closed.
IDLE_SECONDS = 90
_LOG = logging.getLogger("uvicorn.error")


class DrainingServer(uvicorn.Server):
    """Server that drains at the first signal, for at most `shutdown_timeout` seconds, ends running
    requests at the second, and leaves further signals to uvicorn."""

    def __init__(
        self,
        config: uvicorn.Config,
        service: Service,
        shutdown_timeout: float,
        connections: Connections,
        limits: Limits | None = None,
        parting_seconds: float = 2.0,
    ):
        """`limits` bound each connection, `connections` their number. `parting_seconds` is how long
        clients may take to read the ends of their answers after all requests have ended."""
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
        """Start as uvicorn does, but with `Listener`s."""
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
        options = self._connections, config.ssl, self._limits.head_seconds
        self.servers: list[Any] = [Listener(sock, make, *options) for sock in sockets]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close idle connections at once, and others after their answers have been read."""
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
        """Close the remaining connections, whose clients have not read their answers."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
