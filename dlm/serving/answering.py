"""HTTP answers to a body whose requests run in an `AsyncEngine`.

`answer` sends a generation whole or as server-sent events; `await_decision` awaits a decision.
`MergedEvents` yields the events of several requests in the order in which they arrive.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from dlm.admission import check_tools
from dlm.decisions.questions import Decision
from dlm.errors import RequestError
from dlm.events import Committed, Decided, Draft, Event, Failed, Finished
from dlm.openai.answers import Answers
from dlm.openai.body import Body, compact_json, json_in_pieces
from dlm.openai.requests import Generation
from dlm.request import Result
from dlm.serving.async_engine import AsyncEngine
from dlm.serving.event_stream import EventStream
from dlm.serving.guard import Arrival, ClientGoneError, note, until_disconnected

_AT_ONCE = 8  # tokens with log-probabilities that the event loop itself writes: up to 1 ms
T = TypeVar("T")
NumberedEvent = tuple[int, Event] | None  # number of the request; None: no event for a while


class MergedEvents:
    """Events of several streams. It ends when all streams have ended; closing it closes them."""

    def __init__(self, streams: Sequence[EventStream], silence: float):
        """After `silence` seconds without an event, None is yielded."""
        self._streams, self._silence = streams, silence
        self._events: deque[tuple[int, Event]] = deque()
        self._waiting = {
            asyncio.ensure_future(_next(stream)): i for i, stream in enumerate(streams)
        }

    def __aiter__(self) -> "MergedEvents":
        return self

    async def __anext__(self) -> NumberedEvent:
        while not self._events:
            if not self._waiting:
                raise StopAsyncIteration
            done, _ = await asyncio.wait(
                self._waiting, timeout=self._silence, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                return None
            for task in done:
                self._take(task)
        return self._events.popleft()

    def _take(self, task: "asyncio.Task[Event | None]") -> None:
        i, event = self._waiting.pop(task), task.result()
        if event is not None:
            self._events.append((i, event))
            self._waiting[asyncio.ensure_future(_next(self._streams[i]))] = i

    def close(self) -> None:
        for task in self._waiting:
            task.cancel()
        for stream in self._streams:
            stream.close()


async def _next(stream: EventStream) -> Event | None:
    return await anext(stream, None)


# Headers that keep proxies from buffering a stream.
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def answer(
    request: Request,
    engine: AsyncEngine,
    generation: Generation,
    make_answers: Callable[[], Answers],
    silence: float,
    arrival: Arrival,
) -> Response:
    """Run the requests of `generation`, and return the answer, made once they are admitted.

    A stream begins at the first event, or after `silence` seconds without one, and later sends a
    comment after each such silence. An error before the stream begins is raised, and what quick
    checks of tools find is, even if their compilation waits. An answer with log-probabilities may
    be long, so that threads write it.
    """
    long = any(choice.logprobs is not None for choice in generation.requests)
    maker = _Maker(engine, arrival.client)
    opening = engine.open(
        generation.requests, generation.drafts, arrival.size, arrival.at, client=arrival.client
    )
    try:
        streams = await until_disconnected(request, opening, _close)
        events = MergedEvents(streams, silence)
        try:
            answers = make_answers()
            if not generation.stream:
                results = await until_disconnected(request, _results(events))
                text = await maker.make(lambda: _json(answers.whole(results), long), long)
                return Response(text, media_type="application/json")
            first_event = await until_disconnected(request, anext(events))
            if first_event is None:
                check = partial(check_tools, generation.requests[0], engine.engine.vocabulary.calls)
                await maker.make(check, long=True)
            elif isinstance(first_event[1], Failed):
                raise first_event[1].error
        except BaseException:
            events.close()
            raise
    except RequestError as error:
        raise generation.error(error) from error
    chunks = _server_sent(events, first_event, generation, answers, maker, long)
    return _EventResponse(events, chunks)


async def await_decision(
    request: Request, engine: AsyncEngine, decision: Decision, arrival: Arrival
) -> Decided:
    """Run a decision, and return its end. Raises the error that it fails with."""
    opening = engine.open([decision], False, arrival.size, arrival.at, client=arrival.client)
    (events,) = await until_disconnected(request, opening, _close)
    try:
        end = await until_disconnected(request, anext(events))  # the only event of a decision
    finally:
        events.close()
    if isinstance(end, Failed):
        raise end.error
    if not isinstance(end, Decided):
        raise TypeError(f"a decision ended as {type(end).__name__}")
    return end


def _close(streams: list[EventStream]) -> None:
    for stream in streams:
        stream.close()


class _EventResponse(StreamingResponse):
    """Stream that ends as soon as the connection does, not only when it next sends something."""

    def __init__(self, events: MergedEvents, chunks: AsyncIterator[str]):
        super().__init__(chunks, media_type="text/event-stream", headers=_STREAM_HEADERS)
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientGoneError):
                await until_disconnected(
                    Request(scope, receive), super().__call__(scope, _never, send)
                )
        finally:
            self._events.close()


async def _never() -> Message:
    return await asyncio.get_running_loop().create_future()


async def _results(events: MergedEvents) -> list[Result]:
    """Return the results of all requests, in order. Raises the error of the first that fails."""
    results: dict[int, Result] = {}
    async for numbered in events:
        if numbered is not None and isinstance(numbered[1], Failed):
            raise numbered[1].error
        if numbered is not None and isinstance(numbered[1], Finished):
            results[numbered[0]] = numbered[1].result
    return [results[i] for i in range(len(results))]


async def _server_sent(
    events: MergedEvents,
    first_event: NumberedEvent,
    generation: Generation,
    answers: Answers,
    maker: "_Maker",
    long: bool,
) -> AsyncIterator[str]:
    """Yield server-sent events, which threads write if they may be `long`. If a request fails, its
    error ends all of them."""
    try:
        for body in answers.first():
            yield _event(body, answers, False)
        numbered: NumberedEvent = first_event
        while True:
            if numbered is None:
                yield ": keep-alive\n\n"
            else:
                apart = long and not _is_short(numbered[1])
                for body in await maker.make(partial(_bodies, answers, *numbered), apart):
                    yield await maker.make(partial(_event, body, answers, apart), apart)
            numbered = await anext(events)
    except StopAsyncIteration:
        for body in answers.last():
            yield _event(body, answers, False)
    except Exception as error:  # the status has been sent, so the error is an event
        note(error)
        if isinstance(error, RequestError):
            error = generation.error(error)
        for body in answers.failure(error):  # with what has been generated
            yield await maker.make(partial(_event, body, answers, long), long)
    if answers.end_mark:
        yield answers.end_mark


def _is_short(event: Event) -> bool:
    """Return whether an event has so few log-probabilities that a thread would take longer."""
    return isinstance(event, Draft) or (
        isinstance(event, Committed) and len(event.logprobs) <= _AT_ONCE
    )


def _bodies(answers: Answers, index: int, event: Event) -> list[Body]:
    match event:
        case Failed(error=error):
            raise error
        case Finished(result=result):
            return answers.end(index, result)
        case Committed() | Draft():
            return answers.progress(index, event)
    raise TypeError(f"an answer that streams has no {type(event).__name__}")


def _event(body: Body, answers: Answers, long: bool) -> str:
    name = f"event: {body['type']}\n" if answers.event_names else ""
    return f"{name}data: {_json(body, long)}\n\n"


def _json(body: Body, long: bool) -> str:
    return "".join(json_in_pieces(body)) if long else compact_json(body)


@dataclass(frozen=True, slots=True)
class _Maker:
    """Maker of the parts of a client's answer."""

    engine: AsyncEngine
    client: str

    async def make(self, part: Callable[[], T], long: bool) -> T:
        """Return what `part` returns; if that takes `long`, a thread calls it."""
        return await self.engine.run_in_writer(part, self.client) if long else part()
