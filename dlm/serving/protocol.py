"""HTTP/1.1 on one connection, with bounds on what a client may send before it is answered.

uvicorn's protocol parses with httptools, which has no limits: it keeps a header of any size, and
copies it whenever more of it arrives. Here bytes are counted before they are kept, and everything
that a client has to send has a deadline. Bodies are bounded by `dlm.serving.guard`, which reads
them.

Book of the open connections: how many there may be, and which are closed to let others in.
"""

import asyncio
import json
import resource
from collections import OrderedDict
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dlm.errors import DlmError
from dlm.openai.errors import error_body

FILES = 128  # file descriptors that are not for connections: sockets, pipes of compilers, logs
_COMMON = 2048  # connections by default, where the process may open as many files
_ROUTING = 64  # bits of an IPv6 address that name a network: one client has all the rest


class Connection(Protocol):
    """An open connection. Hashable."""

    def evict(self) -> None:
        """Close it at once."""
        ...


class Connections:
    """Counts connections, in all and by address.

    Where there are too many, the one is closed that has been idle for the longest time. Idle are
    *new* connections, which have not sent a complete request, and *kept* ones, which have had an
    answer: the one that is closed is of whichever of these are more, so that neither half-open nor
    kept connections, however many, crowd out the others. A connection whose request is being
    answered is never closed.
    """

    def __init__(self, most: int, most_by_address: int):
        self._most, self._most_by_address = most, most_by_address
        self._all = _Pool()
        self._by_address: dict[str, _Pool] = {}
        self._addresses: dict[Connection, str | None] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def admit(self, connection: Connection, address: str | None) -> bool:
        """Take a new connection, and close others that are too many. `address` is the client's
        network (`network_of`); None is not counted by address. Returns False if there is no room
        and none that could be closed."""
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

    def mark_idle(self, connection: Connection, *, kept: bool) -> None:
        """Note that `connection` is idle from now on; with `kept`, after an answer."""
        for pool in self._pools(connection):
            pool.forget(connection)
            (pool.kept if kept else pool.new)[connection] = None

    def mark_busy(self, connection: Connection) -> None:
        """Note that a request of `connection` is being answered."""
        for pool in self._pools(connection):
            pool.forget(connection)

    def remove(self, connection: Connection) -> None:
        """Forget a connection that is closed; one that is not known is ignored."""
        for pool in self._pools(connection):
            pool.forget(connection)
            pool.open -= 1
        address = self._addresses.pop(connection, None)
        if address is not None and not self._by_address[address].open:
            del self._by_address[address]

    def _pools(self, connection: Connection) -> list["_Pool"]:
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
    """Connections of one address, or all of them. The idle ones are in the order in which they
    became so."""

    def __init__(self):
        self.open = 0
        self.new: OrderedDict[Connection, None] = OrderedDict()
        self.kept: OrderedDict[Connection, None] = OrderedDict()

    def forget(self, connection: Connection) -> None:
        self.new.pop(connection, None)
        self.kept.pop(connection, None)

    def oldest(self) -> Connection | None:
        more = self.new if len(self.new) >= len(self.kept) else self.kept
        return next(iter(more), None)


def network_of(host: str | None) -> str | None:
    """Name of the network of a client at the address `host`: the address itself, or the first 64
    bits of one of IPv6. None for no address, as on a Unix socket."""
    if not host:
        return None
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(int(address) >> _ROUTING << _ROUTING)}/{_ROUTING}"


def connections_allowed(most: int | None, requests: int) -> int:
    """Number of connections that the process may have open under its limit of open files
    (`ulimit -n`): `most` of them, by default 2,048, or twice the number of `requests` that may be
    under way if that is more, as far as the limit goes.

    Raises `DlmError` for more than the limit allows, and for a limit that leaves too few.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = 1 << 20 if limit == resource.RLIM_INFINITY else limit - FILES
    if free < 1:
        raise DlmError(
            f"at most {limit} files may be open (ulimit -n), and {FILES} are not for connections: "
            f"it takes at least {FILES + 1}"
        )
    if most is None:
        return min(free, max(_COMMON, 2 * requests))
    if most > free:
        raise DlmError(
            f"max_connections is {most}: ulimit -n is {limit}, which leaves {free} for connections"
        )
    return most


_MOST_HEADERS = 256  # lines of one request, trailers included
_LINE = 4  # bytes of a header that are neither its name nor its value
_MOST_QUEUED = 128  # requests that may wait on a connection for the answers before theirs
_THROWN_AWAY = 1 << 20  # bytes that are read after a refusal, so that the client comes to read it
_CHUNKS = 4096  # of a body, however small they are;
_CHUNK = 64  # bytes that further chunks have on average, at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what one connection may send; times are in seconds."""

    head_bytes: int = 65_536  # of a request line and headers, with trailers
    head_seconds: float = 20.0  # until the headers are complete, from the first byte or the accept
    unread_seconds: float = 60.0  # that a client may let an answer wait without reading any of it
    rest_seconds: float = 10.0  # to send the rest of a body whose request has been answered
    parting_seconds: float = 1.0  # to read a refusal in, while what is sent is thrown away


class BoundedProtocol(HttpToolsProtocol):
    """One connection. Requests that are too large, or too slow, get a 431 or a 408 and end it."""

    def __init__(self, limits: Limits, book: Connections, **uvicorn: Any):
        super().__init__(**uvicorn)
        self.handshake: asyncio.Task[Any] | None = None  # until the connection is made
        self._limits, self._book = limits, book
        self._deadline: asyncio.TimerHandle | None = None  # for what the client has to send
        self._unread: asyncio.TimerHandle | None = None  # for what it has to read
        self._thrown_away = 0  # bytes
        self._refused = False  # nothing that it sends is looked at any more
        self._refusal: tuple[int, str] | None = None  # status and message, if the parser stops
        self._running: Any = None  # the request that is answered, or was the last time
        self._in_message = self._in_head = False
        self._moved = False  # the parser has got further, in the bytes that it was just given
        self._kept_bytes = 0  # that the parser, or the list of headers, may hold
        self._size = self._lines = 0  # of the head, and of trailers
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
        self._book.remove(self)
        super().connection_lost(exc)
        if self._running is not None:  # uvicorn tells the last of several requests only
            self._running.disconnected = True
            self._running.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._thrown_away += len(data)
            if self._thrown_away > _THROWN_AWAY:
                self.flow.pause_reading()
            return
        self._moved = False
        super().data_received(data)
        if self._refused:
            return
        self._kept_bytes = 0 if self._moved else self._kept_bytes + len(data)
        if self._kept_bytes > self._limits.head_bytes:
            self._refuse(431, self._too_large())
        elif self._deadline is None and (self._in_head or not self._answering):
            self._expect(self._limits.head_seconds)

    def send_400_response(self, msg: str) -> None:
        self._refuse(*(self._refusal or (400, msg)))

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # What the parser calls. What these raise stops it, and `send_400_response` is called.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_message = self._in_head = self._moved = True
        self._size = self._lines = self._chunks = self._body_size = 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._lines += 1
        self._count(len(name) + len(value) + _LINE)
        if self._in_head:  # of trailers nobody has a use
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._moved = True
        if len(self.pipeline) >= _MOST_QUEUED:
            self._stop(400, f"over {_MOST_QUEUED} requests wait on this connection")
        super().on_headers_complete()
        self._in_head = False
        self._expect(None)
        self._book.mark_busy(self)

    def on_chunk_header(self) -> None:
        self._moved = True
        self._chunks += 1
        if self._chunks > _CHUNKS + self._body_size // _CHUNK:
            self._stop(400, f"the body has too many chunks of under {_CHUNK} bytes")

    def on_body(self, body: bytes) -> None:
        self._moved = True
        self._body_size += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        self._moved = True
        super().on_message_complete()
        if not self._answering:  # its answer did not wait for all of it
            self._expect(None)
            self._keep()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() or self._answering:
            return
        if self._in_message and not self._in_head:
            self._expect(self._limits.rest_seconds)
        self._book.mark_idle(self, kept=True)

    def _keep(self) -> None:
        """Wait for the next request."""
        if not self.transport.is_closing() and self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # to close it would wait for its client
        super().timeout_keep_alive_handler()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_read(self._limits.unread_seconds)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._expect_read(None)

    def shutdown(self) -> None:
        if self._refused:
            self.transport.abort()
        else:
            super().shutdown()

    # Bounds

    def _count(self, size: int) -> None:
        """Add bytes of the head."""
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
        """Answer with an error, if no other answer has begun, and end the connection."""
        self._refused = True
        if self._answering:
            cycle, others = self.cycle, bool(self.pipeline) or self._in_head or not self._in_message
            if others or cycle.response_started:
                self.transport.abort()
                return
            cycle.disconnected = True  # the application hears of it
            cycle.message_event.set()
        self._unset_keepalive_if_required()
        self.transport.write(_answer(status, message))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._book.mark_idle(self, kept=False)
        self._expect(self._limits.parting_seconds)

    def _expect(self, seconds: float | None) -> None:
        """Give the client `seconds` from now on; None: as long as it likes."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        self._deadline = None
        if self._in_head and not self._refused and self._answering:
            self._expect(self._limits.head_seconds)  # it may wait for the answer to the last one
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


def _answer(status: int, message: str) -> bytes:
    body = json.dumps(error_body(status, message)).encode()
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


FULL = _answer(503, "too many connections are open, and all of them are being answered")
