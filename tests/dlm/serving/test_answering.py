"""Events of several streams, merged into those of one answer, and the threads that write it."""

import asyncio
from dataclasses import replace
from threading import Thread, current_thread

import pytest
from fastapi import Request as HttpRequest

from dlm import Committed, DlmError, Finished, Request
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


class NotingBody(dict):
    """A body that notes which threads write it."""

    def __init__(self, threads):
        super().__init__(type="done")
        self._threads = threads

    def items(self):
        self._threads.append(current_thread())
        return super().items()


class NotingAnswers(Answers):
    """Answers that note which threads make and write them."""

    def __init__(self, fails):
        self.threads, self._fails = list[Thread](), fails

    def whole(self, results):
        self.threads.append(current_thread())
        return NotingBody(self.threads)

    def progress(self, index, event):
        return [self.whole([])] * 4

    def end(self, index, result):
        if self._fails:
            raise DlmError("it fails")
        return self.progress(index, None)

    def failure(self, error):
        return [NotingBody(self.threads)]

    def first(self):
        return []


@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize("way", ["whole", "stream", "stream that fails"])
async def test_threads_write_answers_that_may_be_long(async_engine, gate, way, logprobs):
    """Otherwise no other client would be served meanwhile."""
    gate.open.set()
    request = replace(REQUEST, logprobs=logprobs)
    generation = Generation(requests=(request,), stream=way != "whole")
    answers, arrival = NotingAnswers(way == "stream that fails"), Arrival(0, "me", 0.0)
    connected = HttpRequest({"type": "http", "headers": []}, asyncio.Event().wait)
    async with async_engine(gate, slots=2) as served:
        response = await answer(connected, served, generation, answers, 9.0, arrival)
        if generation.stream:
            async for _ in response.body_iterator:
                pass
    assert answers.threads
    in_others = {thread is not current_thread() for thread in answers.threads}
    assert in_others == {logprobs is not None}
