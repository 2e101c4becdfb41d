"""An engine for an event loop: a thread of its own steps it, and readers wait for their events.

Knows no HTTP. What a client sends is read, limited, tokenized and compiled neither in the event
loop nor in the thread that steps.

Requests that are prepared in threads, for a client that may leave meanwhile.

The events of one request, for one reader in an event loop.
"""

import asyncio
import logging
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Lock
from time import perf_counter
from types import TracebackType
from typing import Protocol, TypeVar

from dlm.admission import Prepared
from dlm.decisions.questions import Decision
from dlm.engine import Engine
from dlm.errors import DlmError, QueueFullError, RequestError, UnavailableError
from dlm.events import Draft, End, Event, Failed
from dlm.request import Request
from dlm.serving.settings import LARGE


class PreparedRequests:
    """Around their preparation: where that ends with an error, all of them are discarded, those too
    that a thread comes to, or ends, later."""

    def __init__(self, engine: Engine):
        self._engine, self._left, self._change = engine, False, Lock()
        self.prepared: list[Prepared] = []

    def prepare(self, request: Request | Decision) -> None:
        """In any thread."""
        if self._left:
            raise CancelledError
        one = self._engine.prepare(request, self.prepared[-1] if self.prepared else None)
        with self._change:
            if not self._left:
                self.prepared.append(one)
                return
        one.discard()

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            return
        with self._change:
            self._left = True
        for one in self.prepared:
            one.discard()


class EventStream:
    """Ends after an `End`, or when it is closed, which cancels the request.

    Belongs to one event loop. Its memory is bounded by what a request can say: of drafts that
    nobody has read, only the last of a run is kept.
    """

    def __init__(
        self,
        number: int,
        prompt_tokens: int,
        drafts: bool,
        leave: Callable[["EventStream"], None],
        arrived: float | None = None,
        client: str = "",
    ):
        """With `drafts` it tells of those too. `leave` is called where it is closed too early.
        `arrived` is when the request did, by `perf_counter`; None: now. `client` sent it."""
        self.number, self.prompt_tokens = number, prompt_tokens
        self.client = client
        self.opened = perf_counter()
        self.arrived = self.opened if arrived is None else arrived
        self.last_text: float | None = None  # when text was last told, by `perf_counter`
        self._drafts, self._leave = drafts, leave
        self._events: deque[Event] = deque()
        self._ready = asyncio.Event()
        self._over = False  # nothing comes any more

    def put(self, event: Event) -> None:
        if self._over:
            return
        if isinstance(event, Draft):
            if not self._drafts:
                return
            if self._events and isinstance(self._events[-1], Draft):
                self._events.pop()
        self._events.append(event)
        self._over = isinstance(event, End)
        self._ready.set()

    def close(self) -> None:
        """The reader goes away; nothing is left to read."""
        self._events.clear()
        if not self._over:
            self._over = True
            self._leave(self)
        self._ready.set()

    def __aiter__(self) -> "EventStream":
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._over:
                raise StopAsyncIteration
            self._ready.clear()
            await self._ready.wait()
        return self._events.popleft()


_LOG = logging.getLogger(__name__)
_READERS = 3  # threads that read what clients send
_PARTING = 30.0  # seconds to wait for the step that is under way

T = TypeVar("T")


class Observer(Protocol):
    """Hears of every event, in the event loop; `now` is the time of `perf_counter`."""

    def on_event(self, stream: EventStream, event: Event, now: float) -> None: ...

    def on_abandoned(self, stream: EventStream, now: float) -> None:
        """Its reader went away before its end."""
        ...


class AsyncEngine:
    """Its methods are for one event loop, but where they say otherwise.

    The engine is stepped while there is something to do, and otherwise its thread sleeps. Where a
    step raises, the engine has failed: all that runs ends with `UnavailableError`, and all that
    comes is refused with it.
    """

    def __init__(
        self,
        engine: Engine,
        slots: int,
        max_queue: int = 64,
        observer: Observer | None = None,
        reserved: int = 0,
    ):
        """Beside `slots` requests, which run, `max_queue` more may wait. Of these places
        `reserved` are for clients that have no request under way."""
        if max_queue < 0:
            raise DlmError(f"max_queue is {max_queue}: it takes 0 or more requests")
        self.engine, self._observer = engine, observer
        self.max_requests = slots + max_queue  # requests that may be under way
        self._streams: dict[int, EventStream] = {}
        self._reserved = reserved
        self._opening = Counter[str]()  # requests that are being read, by client
        self._large = 0  # of them, those that are read one by one
        self.failure: str | None = None  # the error that a step ended with, by its name
        self._draining = self._closed = False
        self._idle = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._wake = threading.Condition()  # something may be there to do
        self._readers = ThreadPoolExecutor(_READERS, "dlm-reader")
        self._large_reader = ThreadPoolExecutor(1, "dlm-large-reader")  # one by one
        self._thread = threading.Thread(target=self._serve, name="dlm-engine", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """Why nothing is served any more; None: all is well."""
        if self.failure is not None:
            return f"the engine has failed: {self.failure}"
        return "the server is shutting down" if self._draining else None

    @property
    def busy(self) -> bool:
        """Some request has not ended."""
        return bool(self._streams or self._opening)

    def _has_some(self, client: str) -> bool:
        """Some request of `client` is under way."""
        return client in self._opening or any(
            stream.client == client for stream in self._streams.values()
        )

    async def run_in_reader(self, read: Callable[[], T], size: int = 0, client: str = "") -> T:
        """What `read`, which may take long, returns or raises. It runs in a thread, for `client`.

        It reads so many bytes. Those of large bodies wait for each other, and for nobody else.
        """
        with self._admitted(1, size, client) as reader:
            return await self._loop.run_in_executor(reader, read)

    async def open(
        self,
        requests: Sequence[Request | Decision],
        drafts: bool = False,
        size: int = 0,
        arrived: float | None = None,
        *,
        client: str = "",
    ) -> list[EventStream]:
        """Begin all of them, or none; each stream is to be closed by who reads it. They came in so
        many bytes, and when `EventStream` says. Slots go round clients, of which this is `client`.

        Raises `RequestError` for one that cannot be served and for more than there is ever room
        for, `QueueFullError` and `UnavailableError`.
        """
        if len(requests) > self.max_requests:
            raise RequestError(
                f"{len(requests)} requests at once: up to {self.max_requests} run and wait"
            )
        opening = PreparedRequests(self.engine)
        with self._admitted(len(requests), size, client) as reader, opening:
            for request in requests:
                await self._loop.run_in_executor(reader, opening.prepare, request)
            if self.problem is not None and (self.failure is not None or self._closed):
                raise UnavailableError(self.problem)
            streams = []
            for one in opening.prepared:
                leave = self._leave
                stream = EventStream(one.number, one.prompt_tokens, drafts, leave, arrived, client)
                self._streams[one.number] = stream
                streams.append(stream)
                self.engine.start(one, client)
        self._notify()
        return streams

    async def stream(
        self, request: Request | Decision, drafts: bool = False, *, client: str = ""
    ) -> AsyncIterator[Event]:
        """Its events. Leaving the loop early and closing the iterator cancels the request."""
        (events,) = await self.open([request], drafts, client=client)
        try:
            async for event in events:
                yield event
        finally:
            events.close()

    async def drain(self, seconds: float) -> None:
        """Refuse what comes, and let what runs go on for so many seconds at most; then end it."""
        self._draining = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._until_idle(), seconds)
        self._end_all(UnavailableError("the server was shut down"))

    async def close(self) -> None:
        """End everything: what runs, the thread, and the engine."""
        self._draining = self._closed = True
        self._end_all(UnavailableError("the server was shut down"))
        self._notify()
        await asyncio.to_thread(self._thread.join, _PARTING)
        for readers in (self._readers, self._large_reader):
            readers.shutdown(wait=False, cancel_futures=True)
        self.engine.close()

    async def _until_idle(self) -> None:
        while self.busy:
            self._idle.clear()
            await self._idle.wait()

    @contextmanager
    def _admitted(self, count: int, size: int, client: str) -> Iterator[ThreadPoolExecutor]:
        """So many requests, while they are being read: by whom, since they came in so many bytes.

        Large ones take turns, and no more than a fourth of all places.
        """
        if self.problem is not None:
            raise UnavailableError(self.problem)
        large = count if size >= LARGE else 0
        if large and self._large and self._large + large > max(2, self.max_requests // 4):
            raise QueueFullError("too many large requests wait to be read: try again later")
        busy = len(self._streams) + self._opening.total()
        places = self.max_requests
        if self._reserved and self._has_some(client):
            places -= self._reserved
        if busy + count > places:
            raise QueueFullError(
                f"{busy} requests run or wait already, of {places} at most, "
                f"and {count} more are asked for: try again later"
            )
        self._opening[client] += count
        self._large += large
        try:
            yield self._large_reader if large else self._readers
        finally:  # streams are there already: there is no moment at which nothing is to be done
            self._opening[client] -= count
            self._opening = +self._opening  # without clients that have none
            self._large -= large
            self._see_idle()

    def _see_idle(self) -> None:
        if not self.busy:
            self._idle.set()

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify()

    def _leave(self, stream: EventStream) -> None:
        """A reader went away."""
        self._streams.pop(stream.number, None)
        self.engine.cancel(stream.number)
        self._notify()
        if self._observer is not None:
            self._observer.on_abandoned(stream, perf_counter())
        self._see_idle()

    def _serve(self) -> None:
        """What the thread does."""
        try:
            while self._wait_for_work():
                if events := self.engine.step():
                    self._loop.call_soon_threadsafe(self._deliver, events)
        except Exception as error:
            _LOG.exception("the engine has failed")
            with suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                self._loop.call_soon_threadsafe(self._fail, type(error).__name__)

    def _wait_for_work(self) -> bool:
        """False: there will be none."""
        engine = self.engine
        with self._wake:
            self._wake.wait_for(lambda: self._closed or engine.busy or engine.cold)
        return not self._closed

    def _deliver(self, events: Sequence[Event]) -> None:
        now = perf_counter()
        for event in events:
            stream = self._streams.get(event.request)
            if stream is None:
                continue  # its reader has gone
            if isinstance(event, End):
                del self._streams[event.request]
            if self._observer is not None:
                self._observer.on_event(stream, event, now)
            stream.put(event)
        self._see_idle()

    def _fail(self, name: str) -> None:
        self.failure = name
        self._end_all(UnavailableError(f"the engine has failed: {name}"))

    def _end_all(self, error: DlmError) -> None:
        for number in list(self._streams):
            self.engine.cancel(number)
            self._deliver([Failed(request=number, error=error)])
