"""Asynchronous engine: a thread steps it, and readers in an event loop await events.

Requests are parsed, checked, tokenized and compiled in further threads, neither in the event loop
nor in the thread that steps. A client may leave at any time, also while its requests are being
prepared. This module knows no HTTP.
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from threading import Lock
from time import perf_counter
from typing import Any, Protocol, TypeVar

from dlm.admission import Prepared
from dlm.decisions.questions import Decision, Question, QuestionAnswer
from dlm.engine import Engine
from dlm.errors import DlmError, QueueFullError, RequestError, UnavailableError
from dlm.events import Decided, End, Event, Failed, Finished
from dlm.images import placed_images
from dlm.openai.body import LARGE
from dlm.request import Request, Result
from dlm.serving.event_stream import EventStream
from dlm.serving.pace import Pace
from dlm.serving.readers import Readers

_LOG = logging.getLogger(__name__)
_READERS = 3  # threads that read small bodies and prepare their requests
_CLOSING_SECONDS = 30.0  # how long `close` waits for the step that is under way

T = TypeVar("T")


def has_images(request: Request | Decision) -> bool:
    """Return whether images have to be decoded for a request."""
    if isinstance(request, Decision):
        request = request.request
    return bool(placed_images(request.messages or ()))


class PreparedRequests:
    """Context in which several requests are prepared. If it ends with an error, all of them are
    discarded, also one that a thread is still preparing."""

    def __init__(self, engine: Engine):
        self._engine, self._discarded, self._lock = engine, False, Lock()
        self.prepared: list[Prepared] = []

    def prepare(self, request: Request | Decision) -> None:
        """Prepare a request. May be called in any thread."""
        if self._discarded:
            raise CancelledError
        prepared = self._engine.prepare(request, self.prepared[-1] if self.prepared else None)
        with self._lock:
            if not self._discarded:
                self.prepared.append(prepared)
                return
        prepared.discard()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            return
        with self._lock:
            self._discarded = True
        for prepared in self.prepared:
            prepared.discard()


class Observer(Protocol):
    """Observer of all events, called in the event loop; `now` is the time by `perf_counter`."""

    def on_event(self, stream: EventStream, event: Event, now: float) -> None: ...

    def on_abandoned(self, stream: EventStream, now: float) -> None:
        """Note that `stream` was closed before its end."""
        ...


class AsyncEngine:
    """Engine whose methods are called in one event loop, that of the first call. At the end it is
    closed, by `close` or by `async with`.

    Its thread steps the engine while there is work, and otherwise sleeps. If a step raises, the
    engine has failed: running requests end with `UnavailableError`, and new ones are refused with
    it.
    """

    def __init__(
        self,
        engine: Engine,
        slots: int | None = None,
        max_queue: int = 64,
        observer: Observer | None = None,
        reserved: int = 0,
    ):
        """`slots` requests may run, by default those of the engine, and `max_queue` more may wait.
        `reserved` of these places are kept for clients that have no request under way."""
        if max_queue < 0:
            raise DlmError(f"max_queue must be at least 0, got {max_queue}")
        self.engine, self._observer = engine, observer
        running = engine.slots if slots is None else slots
        self.max_requests = running + max_queue  # requests that may be under way
        self._streams: dict[int, EventStream] = {}
        self._reserved = reserved
        self._opening = Counter[str]()  # number of requests that are being prepared, by client
        self._slow = 0  # number of these with large bodies or images, read one at a time
        self.failure: str | None = None  # name of the exception that a step raised
        self._draining = self._closed = False
        self._idle = asyncio.Event()
        self._fewer = asyncio.Event()  # set for a moment
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the first call
        self._wake = threading.Condition()  # notified when there may be work
        self._readers = Readers(_READERS, "dlm-reader")
        self._large_reader = Readers(1, "dlm-large-reader")
        self._image_reader = Readers(1, "dlm-image-reader")
        self._writer = Readers(1, "dlm-writer")  # more would take turns with the thread that steps
        self._thread: threading.Thread | None = None  # runs from the first call on
        self._pace = Pace()

    @property
    def problem(self) -> str | None:
        """The reason that no requests are served; None if they are."""
        if self.failure is not None:
            return f"the engine has failed: {self.failure}"
        return "the server is shutting down" if self._draining else None

    @property
    def busy(self) -> bool:
        """Whether some request has not ended."""
        return bool(self._streams or self._opening)

    @property
    def under_way(self) -> int:
        """Number of requests that run, wait or are being prepared."""
        return len(self._streams) + self._opening.total()

    def _is_active(self, client: str) -> bool:
        """Whether some request of `client` is under way."""
        return client in self._opening or any(
            stream.client == client for stream in self._streams.values()
        )

    async def next_piece(self, client: str = "") -> None:
        """Wait until another piece of a large body of `client` may be received: for a step of the
        engine, unless none follows."""
        if not self._closed:
            await self._pace.next_piece(client)

    async def until_fewer(self) -> None:
        """Wait until something that is under way has ended."""
        await self._fewer.wait()

    async def run_in_reader(
        self, work: Callable[[], T], size: int = 0, client: str = "", images: bool = False
    ) -> T:
        """Return what `work` returns; it runs in a thread, counted as a request of `client`.

        `size` is the number of bytes that it reads; with `images` it decodes images. Large bodies
        wait only for each other, and so do images.
        """
        with self._admitted(1, size, client, images) as reader:
            return await reader.run(work, client)

    async def run_in_writer(self, work: Callable[[], T], client: str = "") -> T:
        """Return what `work` returns, which makes a long answer of `client`. A thread does so for
        one client after another."""
        return await self._writer.run(work, client)

    async def open(
        self,
        requests: Sequence[Request | Decision],
        drafts: bool = False,
        size: int = 0,
        arrived: float | None = None,
        *,
        client: str = "",
    ) -> list[EventStream]:
        """Begin all `requests`, or none. The reader of each stream has to close it.

        `size` is the number of bytes of their body, `arrived` as in `EventStream`. Slots are shared
        fairly among clients, of which `client` is one. Raises `RequestError` for a request that
        cannot be served and for more requests than may run and wait, `QueueFullError` and
        `UnavailableError`.
        """
        if len(requests) > self.max_requests:
            raise RequestError(
                f"requests must be at most {self.max_requests} at once, got {len(requests)}"
            )
        opening = PreparedRequests(self.engine)
        images = any(map(has_images, requests))
        with self._admitted(len(requests), size, client, images) as reader, opening:
            for request in requests:
                await reader.run(partial(opening.prepare, request), client)
            if self.problem is not None and (self.failure is not None or self._closed):
                raise UnavailableError(self.problem)
            streams = []
            for prepared in opening.prepared:
                stream = EventStream(prepared.number, drafts, self._leave, arrived, client)
                self._streams[prepared.number] = stream
                streams.append(stream)
                self.engine.start(prepared, client)
        self._notify()
        return streams

    async def generate(
        self, request: Request, *, timeout: float | None = None, client: str = ""
    ) -> Result:
        """Return the result of one request. Raises the error that it fails with, and `TimeoutError`
        after `timeout` seconds; the request is then cancelled."""
        if not isinstance(request, Request):
            raise RequestError(f"request must be a Request, got a {type(request).__name__}")
        end = await self._end(request, timeout, client)
        if not isinstance(end, Finished):
            raise TypeError(f"a request ended as {type(end).__name__}")
        return end.result

    async def decide(
        self,
        request: Request,
        questions: Sequence[Question | Mapping[str, Any]],
        *,
        timeout: float | None = None,
        client: str = "",
    ) -> list[QuestionAnswer]:
        """Answer typed questions about a request's input, as `Engine.decide` does. Raises as
        `generate` does."""
        decision = Decision(request=request, questions=questions)
        end = await self._end(decision, timeout, client)
        if not isinstance(end, Decided):
            raise TypeError(f"a decision ended as {type(end).__name__}")
        return end.answers

    async def _end(self, request: Request | Decision, timeout: float | None, client: str) -> End:
        """Return the event that ends a request. Raises the error of `Failed`, and `TimeoutError`
        after `timeout` seconds."""
        async with asyncio.timeout(timeout):
            async with aclosing(self.stream(request, client=client)) as events:
                async for event in events:
                    if isinstance(event, Failed):
                        raise event.error
                    if isinstance(event, End):
                        return event
        raise UnavailableError("the engine was closed")

    async def stream(
        self, request: Request | Decision, drafts: bool = False, *, client: str = ""
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of one request. Closing the iterator early cancels the request."""
        (events,) = await self.open([request], drafts, client=client)
        try:
            async for event in events:
                yield event
        finally:
            events.close()

    async def __aenter__(self) -> "AsyncEngine":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, let running ones go on for at most `seconds`, and then end them."""
        self._draining = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._until_idle(), seconds)
        self._end_all(UnavailableError("the server was shut down"))

    async def close(self) -> None:
        """End all requests, stop the thread, and close the engine."""
        self._draining = self._closed = True
        self._end_all(UnavailableError("the server was shut down"))
        self._pace.note_rest()
        self._notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _CLOSING_SECONDS)
        for readers in (self._readers, self._large_reader, self._image_reader, self._writer):
            readers.close()
        self.engine.close()

    async def _until_idle(self) -> None:
        while self.busy:
            self._idle.clear()
            await self._idle.wait()

    @contextmanager
    def _admitted(self, count: int, size: int, client: str, images: bool) -> Iterator[Readers]:
        """Count `count` requests of `client` as being prepared, and yield the threads for that.

        `size` is the number of bytes of their body, and `images` whether they have any. Requests of
        large bodies are prepared one at a time, and so are those with images; together they take at
        most a fourth of all places. Raises `QueueFullError` and `UnavailableError`.
        """
        if self.problem is not None:
            raise UnavailableError(self.problem)
        self._begin()
        slow = count if images or size >= LARGE else 0
        if slow and self._slow and self._slow + slow > max(2, self.max_requests // 4):
            raise QueueFullError(
                "too many large requests wait to be read, or requests with images: try again later"
            )
        busy = self.under_way
        places = self.max_requests
        if self._reserved and self._is_active(client):
            places -= self._reserved
        if busy + count > places:
            raise QueueFullError(
                f"{busy} requests run or wait already, of {places} at most, "
                f"and {count} more have arrived: try again later"
            )
        self._opening[client] += count
        self._slow += slow
        try:
            if images:
                yield self._image_reader
            else:
                yield self._large_reader if slow else self._readers
        finally:  # the streams have been added before, so that `busy` stays true
            self._opening[client] -= count
            self._opening = +self._opening  # drops clients with a count of 0
            self._slow -= slow
            self._note_end()

    def _begin(self) -> None:
        """Start the thread at the first call. Raises `DlmError` in another event loop than its."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            serve = partial(self._serve, loop)
            self._thread = threading.Thread(target=serve, name="dlm-engine", daemon=True)
            self._thread.start()
        elif self._loop is not loop:
            raise DlmError(
                "an AsyncEngine belongs to the event loop of its first call, not to this"
            )

    def _note_end(self) -> None:
        """Note that something that was under way has ended."""
        self._fewer.set()  # all that wait go on
        self._fewer.clear()
        if not self.busy:
            self._idle.set()

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify()

    def _leave(self, stream: EventStream) -> None:
        """Cancel the request of a stream that was closed before its end."""
        self._streams.pop(stream.number, None)
        self.engine.cancel(stream.number)
        self._notify()
        if self._observer is not None:
            self._observer.on_abandoned(stream, perf_counter())
        self._note_end()

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Step the engine until it is closed, in its thread; events are delivered in `loop`."""
        try:
            while self._wait_for_work(loop):
                events = self.engine.step()
                if events or self._pace.awaited:
                    loop.call_soon_threadsafe(self._note_step, events)
        except Exception as error:
            _LOG.exception("the engine has failed")
            with suppress(RuntimeError):  # the loop is closed, and all readers with it
                loop.call_soon_threadsafe(self._fail, type(error).__name__)
        finally:
            self._rest(loop)

    def _wait_for_work(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Wait for work; return whether the thread is to go on."""
        engine = self.engine

        def is_due() -> bool:
            return self._closed or engine.busy or engine.cold

        with self._wake:
            if not is_due():
                self._rest(loop)
                self._wake.wait_for(is_due)
        self._pace.busy = not self._closed
        return self._pace.busy

    def _rest(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note that no step follows until there is work; in this order, so that no caller begins to
        wait after all have been let go on."""
        self._pace.busy = False
        with suppress(RuntimeError):  # the loop is closed, and all callers with it
            loop.call_soon_threadsafe(self._pace.note_rest)

    def _note_step(self, events: Sequence[Event]) -> None:
        self._deliver(events)
        self._pace.note_step()

    def _deliver(self, events: Sequence[Event]) -> None:
        now = perf_counter()
        for event in events:
            stream = self._streams.get(event.request)
            if stream is None:
                continue  # it was closed early
            if isinstance(event, End):
                del self._streams[event.request]
            if self._observer is not None:
                self._observer.on_event(stream, event, now)
            stream.put(event)
        self._note_end()

    def _fail(self, name: str) -> None:
        self.failure = name
        self._end_all(UnavailableError(f"the engine has failed: {name}"))

    def _end_all(self, error: DlmError) -> None:
        for number in list(self._streams):
            self.engine.cancel(number)
            self._deliver([Failed(request=number, error=error)])
