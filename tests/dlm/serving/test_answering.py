"""Events of several streams, merged into those of one answer, and the threads that write it."""

import asyncio
from dataclasses import replace
from threading import Thread, current_thread

import pytest
from fastapi import Request as HttpRequest

from dlm import Committed, Finished, Request
from dlm.openai.answers import Answers
from dlm.openai.requests import Generation
from dlm.serving.answering import MergedEvents, answer
from dlm.serving.guard import Arrival

pytestmark = pytest.mark.anyio
REQUEST = Request(prompt="hi", max_tokens=32)


async def test_closing_unread_merged_events_gives_all_slots_back(async_engine, gate):
    async with async_engine(gate, slots=2) as served:
        events = MergedEvents(await served.open([REQUEST] * 3), silence=1.0)
        assert served.busy
        events.close()
        assert not served.busy
        gate.open.set()
        while served.engine.busy:
            await asyncio.sleep(0.001)
    assert sorted(served.engine._scheduler._free) == [0, 1]


async def test_merged_events_keep_the_order_of_each_stream(async_engine, gate):
    async with async_engine(gate, slots=2) as served:
        events = MergedEvents(await served.open([REQUEST] * 3), silence=0.01)
        assert await anext(events) is None  # nothing happens yet
        gate.open.set()
        events_read = [event async for event in events if event is not None]
    for i in range(3):
        assert [type(event) for j, event in events_read if i == j] == [Committed, Finished]


class NotingThreads(Answers):
    """Answers that note in which threads they are made."""

    def __init__(self):
        self.threads = list[Thread]()

    def _note(self, *_):
        self.threads.append(current_thread())
        return [{"type": "done"}] * 4

    whole = progress = end = _note

    def first(self):
        return []

    failure = first


@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize("stream", [False, True])
async def test_threads_write_answers_that_may_be_long(async_engine, gate, stream, logprobs):
    """Otherwise no other client would be served meanwhile."""
    gate.open.set()
    request = replace(REQUEST, logprobs=logprobs)
    generation = Generation(requests=(request,), stream=stream)
    answers, arrival = NotingThreads(), Arrival(0, "me", 0.0)
    connected = HttpRequest({"type": "http", "headers": []}, asyncio.Event().wait)
    async with async_engine(gate, slots=2) as served:
        response = await answer(connected, served, generation, answers, 9.0, arrival)
        if stream:
            async for _ in response.body_iterator:
                pass
    assert answers.threads
    in_others = {thread is not current_thread() for thread in answers.threads}
    assert in_others == {logprobs is not None}
