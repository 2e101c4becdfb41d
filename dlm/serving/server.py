"""Server process that listens, bounds connections, and finishes requests before it exits.

uvicorn closes its sockets at the first signal. Here they stay open while requests finish: new
requests get a 503, at which load balancers choose another server.

An event loop's own server accepts all waiting connections until the process has no file
descriptors left, and then pauses for a second. A `Listener` closes idle connections before that.
"""

import asyncio
import errno
import logging
import socket
import ssl
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.config import STARTUP_FAILURE

from dlm.serving.guard import network_of
from dlm.serving.protocol import FULL, BoundedProtocol, Connections, Limits
from dlm.serving.service import Service

_ACCEPT_LOG = logging.getLogger(__name__)
_AT_ONCE = 16  # connections accepted before other tasks of the event loop run
_PAUSE = 0.1  # seconds until the next try after an accept failed
_NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """Listening socket whose connections are accepted in the running event loop. uvicorn uses it
    as an `asyncio.Server`."""

    def __init__(
        self,
        sock: socket.socket,
        make: Callable[[], BoundedProtocol],
        connections: Connections,
        context: ssl.SSLContext | None,
        handshake_seconds: float,
    ):
        """`make` returns the protocol of a new connection. With a `context`, connections use TLS,
        whose handshake may take `handshake_seconds`."""
        sock.setblocking(False)
        self._sock, self._make, self._connections = sock, make, connections
        self._tls: dict[str, Any] = {}
        if context is not None:
            self._tls = {"ssl": context, "ssl_handshake_timeout": handshake_seconds}
        self._loop = asyncio.get_running_loop()
        self._paused: asyncio.TimerHandle | None = None
        self._closed = False
        self._loop.add_reader(sock, self._accept)

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        return () if self._closed else (self._sock,)

    def close(self) -> None:
        """Accept no more connections; open ones stay open."""
        if self._closed:
            return
        self._closed = True
        if self._paused is None:
            self._loop.remove_reader(self._sock)
        else:
            self._paused.cancel()
        self._sock.close()

    async def wait_closed(self) -> None:
        """Return at once; uvicorn calls this method of an `asyncio.Server`."""

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _NO_RESOURCES:
                    _ACCEPT_LOG.exception("a connection could not be accepted")
                self._pause()
                return
            sock.setblocking(False)
            self._admit(sock, peer[0] if isinstance(peer, tuple) else None)

    def _admit(self, sock: socket.socket, host: str | None) -> None:
        protocol = self._make()
        if not self._connections.admit(protocol, network_of(host)):
            with sock, suppress(OSError):
                if not self._tls:
                    sock.send(FULL)
            return
        connecting = self._loop.connect_accepted_socket(lambda: protocol, sock, **self._tls)
        protocol.handshake = task = self._loop.create_task(connecting)

        def end(task: asyncio.Task[Any]) -> None:
            protocol.handshake = None
            if not task.cancelled():
                task.exception()  # a failed handshake is not logged
            if protocol.transport is None:
                self._connections.remove(protocol)
                sock.close()

        task.add_done_callback(end)

    def _pause(self) -> None:
        """Stop watching the socket for a while: it stays ready until a connection is accepted."""
        self._loop.remove_reader(self._sock)
        self._paused = self._loop.call_later(_PAUSE, self._resume)

    def _resume(self) -> None:
        self._paused = None
        self._loop.add_reader(self._sock, self._accept)


def listening(host: str, port: int, uds: str | None, backlog: int) -> list[socket.socket]:
    """Return sockets that listen on all addresses of `host`, or on the Unix socket `uds`, whose
    file replaces an existing socket. Raises `OSError`."""
    if uds is not None:
        return [_unix_socket(uds, backlog)]
    addresses = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets, problem = list[socket.socket](), OSError(f"no address for {host}")
    try:
        for family, _, _, _, address in dict.fromkeys(addresses):
            chosen = sockets[0].getsockname()[1] if port == 0 and sockets else port
            address = (address[0], chosen, *address[2:])
            try:
                sockets.append(socket.create_server(address, family=family, backlog=backlog))
            except OSError as error:
                problem = error
                if error.errno != errno.EADDRNOTAVAIL:  # the machine may have no IPv6
                    raise
        if not sockets:
            raise problem
    except OSError:
        for listener in sockets:
            listener.close()
        raise
    return sockets


def _unix_socket(path: str, backlog: int) -> socket.socket:
    mode = 0o666
    file = Path(path)
    if file.is_socket():
        mode = stat.S_IMODE(file.stat().st_mode)
        file.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        file.chmod(mode)
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock


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

    async def serve(self, *args: Any, **kwargs: Any) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(*args, **kwargs)

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
            prefix=self._service.settings.root_path,
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
