"""HTTP/1.1 connections with bounds on their number, and on what each client may send.

uvicorn's protocol parses with httptools, which has no limits: it keeps a header of any size, and
copies it whenever more of it arrives. In `BoundedProtocol` bytes are counted before they are kept,
and each part that a client has to send has a deadline. `dlm.serving.guard` bounds bodies.
`Connections` counts open connections, and closes idle ones to admit others.
"""

import asyncio
import json
import resource
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dlm.errors import DlmError
from dlm.openai.answers import error_body
from dlm.serving.guard import status_body

FILES = 128  # file descriptors that are not for connections: sockets, pipes of compilers, logs
_DEFAULT_MOST = 2048  # connections, if the process may open as many files


class Connections:
    """Number of connections, in all and by address.

    If there are too many, an idle one is closed. Idle connections are *new* (no complete request
    yet) or *kept* (after an answer). The one that has been idle longest is closed among the more
    numerous of the two kinds, so that neither kind crowds out the other. A connection whose request
    is being answered is never closed.
    """

    def __init__(self, most: int, most_by_address: int):
        self._most, self._most_by_address = most, most_by_address
        self._all = _Pool()
        self._by_address: dict[str, _Pool] = {}
        self._addresses: dict[BoundedProtocol, str | None] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def admit(self, connection: "BoundedProtocol", address: str | None) -> bool:
        """Count a new connection; if there are too many, close an idle one. `address` is the
        client's network (`network_of`); None is not counted by address. Returns False if there are
        too many and none is idle."""
        own = None if address is None else self._by_address.get(address)
        if own is not None and own.open >= self._most_by_address and not self._evict(own):
            return False
        if self._all.open >= self._most and not self._evict(self._all):
            return False
        self._addresses[connection] = address
        if address is not None:
            self._by_address.setdefault(address, _Pool())
        for pool in self._pools(connection):
            pool.open += 1
        self.mark_idle(connection, kept=False)
        return True

    def mark_idle(self, connection: "BoundedProtocol", *, kept: bool) -> None:
        """Note that `connection` is idle from now on; with `kept`, after an answer."""
        for pool in self._pools(connection):
            pool.forget(connection)
            (pool.kept if kept else pool.new)[connection] = None

    def mark_busy(self, connection: "BoundedProtocol") -> None:
        """Note that a request of `connection` is being answered."""
        for pool in self._pools(connection):
            pool.forget(connection)

    def remove(self, connection: "BoundedProtocol") -> None:
        """Forget a connection that is closed; an unknown one is ignored."""
        for pool in self._pools(connection):
            pool.forget(connection)
            pool.open -= 1
        address = self._addresses.pop(connection, None)
        if address is not None and not self._by_address[address].open:
            del self._by_address[address]

    def _pools(self, connection: "BoundedProtocol") -> list["_Pool"]:
        if connection not in self._addresses:
            return []
        address = self._addresses[connection]
        return [self._all] if address is None else [self._all, self._by_address[address]]

    def _evict(self, pool: "_Pool") -> bool:
        oldest = pool.oldest()
        if oldest is None:
            return False
        self.remove(oldest)
        oldest.evict()
        return True


class _Pool:
    """Connections of one address, or of all; `new` and `kept` ones in the order in which they
    became idle."""

    def __init__(self):
        self.open = 0  # number of connections, idle or not
        self.new: OrderedDict[BoundedProtocol, None] = OrderedDict()
        self.kept: OrderedDict[BoundedProtocol, None] = OrderedDict()

    def forget(self, connection: "BoundedProtocol") -> None:
        self.new.pop(connection, None)
        self.kept.pop(connection, None)

    def oldest(self) -> "BoundedProtocol | None":
        larger = self.new if len(self.new) >= len(self.kept) else self.kept
        return next(iter(larger), None)


def connections_allowed(most: int | None, requests: int) -> int:
    """Return how many connections may be open under the limit of open files (`ulimit -n`): `most`,
    or if that is None, 2,048 or twice the number of `requests` that may be under way, whichever is
    more, as far as the limit allows.

    Raises `DlmError` if `most` exceeds the limit, or if the limit leaves no connections.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = 1 << 20 if limit == resource.RLIM_INFINITY else limit - FILES
    if free < 1:
        raise DlmError(
            f"ulimit -n must be at least {FILES + 1}, since {FILES} files are not for connections, "
            f"got {limit}"
        )
    if most is None:
        return min(free, max(_DEFAULT_MOST, 2 * requests))
    if most > free:
        raise DlmError(
            f"max_connections must be at most {free}, which ulimit -n {limit} leaves, got {most}"
        )
    return most


_MOST_HEADERS = 256  # lines of one request, trailers included
_LINE_OVERHEAD = 4  # bytes of a header that are neither its name nor its value
_MOST_QUEUED = 128  # requests that may wait on a connection for the answers before theirs
_MOST_DISCARDED = 1 << 20  # bytes read after a refusal, so that the client comes to read it
_SMALL_CHUNKS = 4096  # chunks of a body that may have any size
_CHUNK_BYTES = 64  # least average size of further chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what one connection may send; times are in seconds."""

    head_bytes: int = 65_536  # size of request line, headers and trailers
    head_seconds: float = 20.0  # to complete the headers, from the first byte or the accept
    unread_seconds: float = 60.0  # during which a client reads nothing of an answer that waits
    rest_seconds: float = 10.0  # to send the rest of a body whose request has been answered
    parting_seconds: float = 1.0  # to read a refusal, while incoming bytes are discarded


class BoundedProtocol(HttpToolsProtocol):
    """One connection. A request that is too large or too slow gets a 431 or 408, and ends it, after
    the answers to the requests before it."""

    def __init__(
        self, limits: Limits, connections: Connections, *, prefix: str = "", **uvicorn: Any
    ):
        """`prefix` is what paths may begin with before those of routes (`Settings.root_path`)."""
        super().__init__(**uvicorn)
        self._prefix = prefix
        self.handshake: asyncio.Task[Any] | None = None  # None once the connection is made
        self._limits, self._connections = limits, connections
        self._deadline: asyncio.TimerHandle | None = None  # by which the client has to send
        self._unread: asyncio.TimerHandle | None = None  # deadline by which it has to read
        self._discarded = 0  # bytes received after a refusal
        self._refused = False  # further bytes of the client are discarded
        self._refusal: tuple[int, str] | None = None  # status and message, if the parser stops
        self._last: bytes | None = None  # a refusal that waits for the answers before it
        self._running: Any = None  # the request that is being answered, or was answered last
        self._in_message = self._in_head = False
        self._advanced = False  # the parser has completed some part in the latest bytes
        self._kept_bytes = 0  # bytes that the parser, or the list of headers, may hold
        self._size = self._lines = 0  # bytes and lines of the head and of trailers
        self._chunks = self._body_size = 0

    def evict(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect(self._limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        self._expect_read(None)
        self._unset_keepalive_if_required()
        self._connections.remove(self)
        super().connection_lost(exc)
        if self._running is not None:  # uvicorn notifies only the last of several requests
            self._running.disconnected = True
            self._running.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._discarded += len(data)
            if self._discarded > _MOST_DISCARDED:
                self.flow.pause_reading()
            return
        self._advanced = False
        super().data_received(data)
        if self._refused:
            return
        self._kept_bytes = 0 if self._advanced else self._kept_bytes + len(data)
        if self._kept_bytes > self._limits.head_bytes:
            self._refuse(431, self._too_large())
        elif self._deadline is None and (self._in_head or not self._answering):
            self._expect(self._limits.head_seconds)

    def send_400_response(self, msg: str) -> None:
        self._refuse(*(self._refusal or (400, "this is not a request of HTTP/1.1")))

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # Callbacks of the parser. An exception stops it, and `send_400_response` is called.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_message = self._in_head = self._advanced = True
        self._size = self._lines = self._chunks = self._body_size = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._lines += 1
        self._count(len(name) + len(value) + _LINE_OVERHEAD)
        if self._in_head:  # trailers are ignored
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._advanced = True
        if len(self.pipeline) >= _MOST_QUEUED:
            self._stop(400, f"over {_MOST_QUEUED} requests wait on this connection")
        super().on_headers_complete()
        self._in_head = False
        self._expect(None)
        self._connections.mark_busy(self)

    def on_chunk_header(self) -> None:
        self._advanced = True
        self._chunks += 1
        if self._chunks > _SMALL_CHUNKS + self._body_size // _CHUNK_BYTES:
            self._stop(400, f"the body has too many chunks of under {_CHUNK_BYTES} bytes")

    def on_body(self, body: bytes) -> None:
        self._advanced = True
        self._body_size += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        self._advanced = True
        super().on_message_complete()
        if not self._answering:  # it has been answered before it was complete
            self._expect(None)
            self._keep_alive()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() or self._answering:
            return
        if self._last is not None:
            self._part(self._last)
            return
        if self._in_message and not self._in_head:
            self._expect(self._limits.rest_seconds)
        self._connections.mark_idle(self, kept=True)

    def _keep_alive(self) -> None:
        """Start the timeout for the next request."""
        if not self.transport.is_closing() and self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # `close` would wait until the client has read
        super().timeout_keep_alive_handler()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_read(self._limits.unread_seconds)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._expect_read(None)

    def shutdown(self) -> None:
        if self._refused and self._last is None:
            self.transport.abort()
        else:
            super().shutdown()

    # Bounds

    def _count(self, size: int) -> None:
        """Count `size` bytes of the head."""
        self._size += size
        if self._size > self._limits.head_bytes:
            self._stop(431, self._too_large())
        if self._lines > _MOST_HEADERS:
            self._stop(431, f"the request has over {_MOST_HEADERS} headers")

    def _too_large(self) -> str:
        return f"the request's headers have more than {self._limits.head_bytes} bytes"

    def _stop(self, status: int, message: str) -> None:
        self._refusal = status, message
        raise ValueError(message)

    def _refuse(self, status: int, message: str) -> None:
        """Send an error after the answers to earlier requests, and end the connection. If the
        answer to this request has begun already, the connection ends at once."""
        self._refused = True
        refusal = _answer(status, self._error(status, message))
        if self._answering and self._in_message and not self._in_head:
            cycle = self.cycle  # of the refused request
            if cycle.response_started:
                self.transport.abort()
                return
            cycle.disconnected = True  # notifies the application
            cycle.message_event.set()
            if not self.pipeline:
                self._part(refusal)
                return
            self.pipeline.popleft()  # it has not been started
            self.cycle = self.pipeline[0][0] if self.pipeline else self._running
        if self._answering:
            self._last = refusal
            self._expect(None)
        else:
            self._part(refusal)

    def _part(self, refusal: bytes) -> None:
        """Send the last answer of the connection, and end it once the client has read that."""
        self._last = None
        self._unset_keepalive_if_required()
        self.transport.write(refusal)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._connections.mark_idle(self, kept=False)
        self._expect(self._limits.parting_seconds)

    def _error(self, status: int, message: str) -> dict[str, Any]:
        """Return the body of an error in the form of the route, as far as its path has arrived."""
        path = b""
        if self._in_message:
            with suppress(httptools.HttpParserInvalidURLError):
                path = httptools.parse_url(self.url).path or b""
        scope = {"path": unquote(path), "root_path": self._prefix, "headers": self.headers}
        return status_body(scope, status, message)

    def _expect(self, seconds: float | None) -> None:
        """Set the deadline for sending to `seconds` from now; None: no deadline."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        self._deadline = None
        if self._in_head and not self._refused and self._answering:
            self._expect(self._limits.head_seconds)  # it may be waiting for the answer before
        elif self._in_head and not self._refused:
            self._refuse(408, f"no complete headers in {self._limits.head_seconds:g} seconds")
        else:
            self.transport.abort()

    def _expect_read(self, seconds: float | None) -> None:
        if self._unread is not None:
            self._unread.cancel()
        self._unread = None
        if seconds is not None:
            self._unread = self.loop.call_later(seconds, self.transport.abort)


def _answer(status: int, error: dict[str, Any]) -> bytes:
    body = json.dumps(error).encode()
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


_FULL = "too many connections are open, and all of them are being answered"
FULL = _answer(503, error_body(503, _FULL))
