"""HTTP/1.1 on one connection, with bounds on what a client may send before it is answered.

uvicorn's protocol parses with httptools, which has no limits: it keeps a header of any size, and
copies it whenever more of it arrives. Here bytes are counted before they are kept, and everything
that a client has to send has a deadline. Bodies are bounded by `dlm.serving.guard`, which reads
them.
"""

import asyncio
import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dlm.openai.errors import error_body
from dlm.serving.connections import Connections

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
        self._book.work(self)

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
        self._book.rest(self, kept=True)

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
        self._book.rest(self, kept=False)
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
