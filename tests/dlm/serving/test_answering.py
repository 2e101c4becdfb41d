"""Events of several streams, merged into those of one answer, and the threads that write it."""

import asyncio
from dataclasses import replace
from functools import partial
from threading import current_thread

import pytest
from fastapi import Request as HttpRequest
from gated import Gated

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
    """A body that notes whether another thread writes it."""

    def __init__(self, note):
        super().__init__(type="done")
        self._note = note

    def items(self):
        self._note()
        return super().items()


class NotingAnswers(Answers):
    """Answers that note which parts of them the thread of long answers makes and writes."""

    def __init__(self, fails):
        self.noted, self._fails = set[tuple[str, bool]](), fails

    def _note(self, part):
        self.noted.add((part, current_thread().name.startswith("dlm-writer")))

    def _body(self, part):
        self._note(part)
        return NotingBody(partial(self._note, part))

    def whole(self, results):
        return self._body("whole")

    def progress(self, index, event):
        return [self._body(f"{len(event.logprobs or ())} tokens")] if event.text else []

    def end(self, index, result):
        if self._fails:
            raise DlmError("it fails")
        return [self._body("end")] * 4

    def failure(self, error):
        return [NotingBody(partial(self._note, "failure"))]

    def first(self):
        return []


SHORT, LONG = '"hi there"<turn|>', '"Ada, Bob, Eve, Max, Tim, Zoe"<turn|>'


@pytest.mark.parametrize(
    ("text", "way", "logprobs", "expected"),
    [
        (SHORT, "whole", None, {("whole", False)}),
        (SHORT, "whole", 2, {("whole", True)}),
        (SHORT, "stream", None, {("0 tokens", False), ("end", False)}),
        (SHORT, "stream", 2, {("6 tokens", False), ("end", True)}),
        (LONG, "stream", 2, {("21 tokens", True), ("end", True)}),
        (SHORT, "stream that fails", None, {("0 tokens", False), ("failure", False)}),
        (SHORT, "stream that fails", 2, {("6 tokens", False), ("failure", True)}),
    ],
)
async def test_threads_write_what_may_be_long(
    async_engine, tokens_of, text, way, logprobs, expected
):
    """Otherwise no other client would be served meanwhile."""
    gate = Gated(tokens_of(text), canvas_length=32)
    gate.open.set()
    request = replace(REQUEST, logprobs=logprobs)
    generation = Generation(requests=(request,), stream=way != "whole")
    answers, arrival = NotingAnswers(way == "stream that fails"), Arrival(0, "me", 0.0)
    connected = HttpRequest({"type": "http", "headers": []}, asyncio.Event().wait)
    async with async_engine(gate, slots=2) as served:
        response = await answer(connected, served, generation, lambda: answers, 9.0, arrival)
        if generation.stream:
            async for text in response.body_iterator:
                assert text in ('data: {"type":"done"}\n\n', "data: [DONE]\n\n")
        else:
            assert response.body == b'{"type":"done"}'
    assert answers.noted == expected
