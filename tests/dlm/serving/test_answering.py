"""Events of several streams, merged into those of one answer."""

import asyncio
from types import SimpleNamespace

import pytest

from dlm import Committed, Finished, Request
from dlm.serving.answering import MergedEvents, _server_sent

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


class NoEvents:
    async def __anext__(self):
        raise StopAsyncIteration


async def test_others_have_a_turn_between_the_events_of_one_end():
    """Each of them may take long to write."""
    ends = [{"type": "done"}] * 4
    answers = SimpleNamespace(
        first=list, end=lambda index, result: ends, last=list, event_names=False, end_mark=""
    )
    turns = 0

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    end = (0, Finished(request=0, result=SimpleNamespace()))
    seen = [turns async for _ in _server_sent(NoEvents(), end, answers)]
    task.cancel()
    assert len(seen) == 4
    assert seen == sorted(set(seen))
