"""Listening sockets whose connections are counted before they are accepted.

An event loop's own server accepts whatever is waiting, until the process has no file descriptors
left, and then stops for a second. Here room is made first.
"""

import asyncio
import errno
import logging
import socket
import ssl
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dlm.serving.protocol import FULL, BoundedProtocol, Connections, network_of

_LOG = logging.getLogger(__name__)
_AT_ONCE = 16  # connections that are accepted before the event loop does something else
_PAUSE = 0.1  # seconds after which an accept that failed for want of something is tried again
_WANTING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """Accepts connections from one listening socket, in the running event loop. It stands where
    uvicorn has an `asyncio.Server`."""

    def __init__(
        self,
        sock: socket.socket,
        make: Callable[[], BoundedProtocol],
        book: Connections,
        context: ssl.SSLContext | None,
        handshake_seconds: float,
    ):
        """`make` makes the protocol of a connection; with a `context` it is TLS, whose handshake
        may take `handshake_seconds`."""
        sock.setblocking(False)
        self._sock, self._make, self._book = sock, make, book
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
        """Accept no more connections. Those that there are stay."""
        if self._closed:
            return
        self._closed = True
        if self._paused is None:
            self._loop.remove_reader(self._sock)
        else:
            self._paused.cancel()
        self._sock.close()

    async def wait_closed(self) -> None:
        """As of `asyncio.Server`. Nothing is waited for."""

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _WANTING:
                    _LOG.exception("a connection could not be accepted")
                self._pause()
                return
            sock.setblocking(False)
            self._admit(sock, peer[0] if isinstance(peer, tuple) else None)

    def _admit(self, sock: socket.socket, host: str | None) -> None:
        protocol = self._make()
        if not self._book.admit(protocol, network_of(host)):
            with sock, suppress(OSError):
                if not self._tls:
                    sock.send(FULL)
            return
        begun = self._loop.connect_accepted_socket(lambda: protocol, sock, **self._tls)
        protocol.handshake = task = self._loop.create_task(begun)

        def end(task: asyncio.Task[Any]) -> None:
            protocol.handshake = None
            if not task.cancelled():
                task.exception()  # a handshake that failed is the client's affair
            if protocol.transport is None:
                self._book.remove(protocol)
                sock.close()

        task.add_done_callback(end)

    def _pause(self) -> None:
        """The socket stays ready for as long as nobody accepts: wait before the next try."""
        self._loop.remove_reader(self._sock)
        self._paused = self._loop.call_later(_PAUSE, self._resume)

    def _resume(self) -> None:
        self._paused = None
        self._loop.add_reader(self._sock, self._accept)


def listening(host: str, port: int, uds: str | None, backlog: int) -> list[socket.socket]:
    """Sockets that listen on all addresses of `host`, or on the Unix socket `uds`, whose file gives
    way where there is one. Raises `OSError`."""
    if uds is not None:
        return [_unix_socket(uds, backlog)]
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets, problem = list[socket.socket](), OSError(f"no address for {host}")
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            there = sockets[0].getsockname()[1] if port == 0 and sockets else port
            where = (address[0], there, *address[2:])
            try:
                sockets.append(socket.create_server(where, family=family, backlog=backlog))
            except OSError as error:
                problem = error
                if error.errno != errno.EADDRNOTAVAIL:  # a machine without IPv6, say
                    raise
        if not sockets:
            raise problem
    except OSError:
        for one in sockets:
            one.close()
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
