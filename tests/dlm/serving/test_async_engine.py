"""An engine in a thread of its own, and its readers in an event loop."""

import asyncio
import random
import threading
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from doubles import Random, Scripted
from values import PROMPT, V
from waiting import PATIENCE

from dlm import Choice, Committed, DlmError, Draft, Failed, Finished, Request, RequestError
from dlm.errors import QueueFullError, UnavailableError
from dlm.grammar import Task
from dlm.openai.body import LARGE
from dlm.serving.answering import MergedEvents
from dlm.serving.async_engine import AsyncEngine

REQUEST = Request(token_ids=PROMPT, max_tokens=32)


class Gate(Scripted):
    """Says a text; no pass begins while it is shut."""

    def __init__(self, script, **shape):
        super().__init__(V, len(PROMPT), script, **shape)
        self.open = threading.Event()
        self.passes = 0

    def denoise(self, *args, **more):
        assert self.open.wait(PATIENCE)
        self.passes += 1
        return super().denoise(*args, **more)


class Broken(Random):
    def denoise(self, *args, **more):
        raise RuntimeError("/a/path of the device")


@pytest.fixture
def gate(tokens_of):
    return Gate(tokens_of('"hi there"<turn|>'))


@pytest.fixture
def serving(engine_of):
    @asynccontextmanager
    async def serving(model, slots=2, max_queue=4, observer=None):
        served = AsyncEngine(engine_of(model, slots=slots), slots, max_queue, observer)
        try:
            yield served
        finally:
            if isinstance(model, Gate):
                model.open.set()
            await served.close()

    return serving


async def read(events):
    return [event async for event in events]


def test_a_request_is_told_of_to_its_end_and_drafts_only_where_they_are_wanted(serving, gate):
    async def main():
        gate.open.set()
        async with serving(gate) as served:
            plain = await read(served.stream(REQUEST))
            drawn = await read(served.stream(REQUEST, drafts=True))
        assert [type(event) for event in plain] == [Committed, Finished]
        assert isinstance(drawn[0], Draft)
        assert plain[-1].result.text == drawn[-1].result.text == '"hi there"'

    asyncio.run(main())


def test_a_reader_that_goes_away_gives_its_slot_to_others(serving, gate):
    async def main():
        async with serving(gate, slots=1) as served:
            first = served.stream(REQUEST)
            pending = asyncio.ensure_future(anext(first))
            await asyncio.sleep(0)
            while not served._streams:
                await asyncio.sleep(0.001)
            second = asyncio.ensure_future(read(served.stream(REQUEST)))
            pending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pending
            await first.aclose()
            gate.open.set()
            events = await asyncio.wait_for(second, 60)
            assert isinstance(events[-1], Finished)
            assert not served.busy
            while served.engine.busy:
                await asyncio.sleep(0.001)
        assert served.engine._scheduler._free == [0]

    asyncio.run(main())


def test_more_requests_than_may_wait_are_refused_and_later_ones_are_not(serving, gate):
    async def main():
        async with serving(gate, slots=1, max_queue=2) as served:
            streams = await served.open([REQUEST] * 2)
            with pytest.raises(QueueFullError, match="2 requests run or wait already, of 3 at"):
                await served.open([REQUEST] * 2)  # all of them or none
            streams += await served.open([REQUEST])
            with pytest.raises(QueueFullError, match="3 requests run or wait already"):
                await served.open([REQUEST])
            with pytest.raises(QueueFullError):
                await served.run_in_reader(lambda: 1)
            gate.open.set()
            for stream in streams:
                assert isinstance((await read(stream))[-1], Finished)
            with pytest.raises(RequestError, match="4 requests at once: up to 3 run and wait"):
                await served.open([REQUEST] * 4)  # there never will be room for them
            assert not served.busy
            assert await served.run_in_reader(lambda: 1) == 1

    asyncio.run(main())


def test_a_request_that_fails_ends_alone(serving, gate):
    async def main():
        gate.open.set()
        async with serving(gate) as served:
            with pytest.raises(RequestError, match="token 99999 is outside"):
                await read(served.stream(Request(token_ids=[99999])))
            short = Request(
                token_ids=PROMPT, constraint=Choice(["quite long indeed"]), max_tokens=1
            )
            (refused,) = await read(served.stream(short))
            assert isinstance(refused, Failed)
            assert isinstance(refused.error, RequestError)
            assert isinstance((await read(served.stream(REQUEST)))[-1], Finished)
            assert served.problem is None

    asyncio.run(main())


def test_an_engine_that_fails_says_so_to_all_and_tells_no_client_what_it_said(serving):
    async def main():
        async with serving(Broken(V, seed=1)) as served:
            streams = await served.open([REQUEST] * 3)
            for stream in streams:
                (event,) = await read(stream)
                assert isinstance(event, Failed)
                assert isinstance(event.error, UnavailableError)
                assert "path" not in str(event.error)
            assert served.problem == "the engine has failed: RuntimeError"
            with pytest.raises(UnavailableError, match="the engine has failed"):
                await served.open([REQUEST])

    asyncio.run(main())


def test_draining_lets_requests_finish_and_refuses_new_ones(serving, gate):
    async def main():
        async with serving(gate, slots=1) as served:
            streams = await served.open([REQUEST] * 3)
            draining = asyncio.ensure_future(served.drain(60))
            await asyncio.sleep(0)
            with pytest.raises(UnavailableError, match="shutting down"):
                await served.open([REQUEST])
            gate.open.set()
            await draining
            assert [type((await read(s))[-1]) for s in streams] == [Finished] * 3

    asyncio.run(main())


def test_draining_waits_for_what_is_being_prepared(serving, gate, monkeypatch):
    async def main():
        async with serving(gate) as served:
            gate.open.set()
            prepare, begun, goes_on = served.engine.prepare, asyncio.Event(), threading.Event()

            def slow(request, like):
                served._loop.call_soon_threadsafe(begun.set)
                assert goes_on.wait(PATIENCE)
                return prepare(request, like)

            monkeypatch.setattr(served.engine, "prepare", slow)
            opening = asyncio.ensure_future(served.open([REQUEST]))
            await asyncio.wait_for(begun.wait(), PATIENCE)
            draining = asyncio.ensure_future(served.drain(PATIENCE))
            await asyncio.sleep(0)
            goes_on.set()
            (stream,) = await opening
            assert isinstance((await read(stream))[-1], Finished)
            await draining

    asyncio.run(main())


def test_draining_ends_what_takes_longer_than_it_may(serving, gate):
    async def main():
        async with serving(gate, slots=1) as served:
            streams = await served.open([REQUEST] * 2)
            await served.drain(0)
            for stream in streams:
                (event,) = await read(stream)
                assert isinstance(event.error, UnavailableError)

    asyncio.run(main())


def test_an_idle_engine_is_not_stepped(serving, gate, monkeypatch):
    """Neither before the first request nor after the last, once its grammar is warm."""

    async def main():
        gate.open.set()
        async with serving(gate) as served:
            engine, steps = served.engine, []
            step = engine.step
            monkeypatch.setattr(engine, "step", lambda: steps.append(1) or step())
            constrained = Request(token_ids=PROMPT, constraint=Choice(["a", "b"]), max_tokens=32)
            await read(served.stream(constrained))
            while engine.cold or engine.busy:
                await asyncio.sleep(0.001)
            await asyncio.to_thread(time.sleep, 0.05)  # the thread may still be in its last step
            before = len(steps)
            await asyncio.to_thread(time.sleep, 0.2)
            assert len(steps) == before > 0

    asyncio.run(main())


def test_the_loop_goes_on_while_a_body_is_read(serving, gate):
    async def main():
        async with serving(gate) as served:
            read = threading.Event()
            reading = asyncio.ensure_future(served.run_in_reader(lambda: read.wait(PATIENCE)))
            await asyncio.sleep(0.01)
            read.set()  # would never be, were the loop not free
            assert await reading

    asyncio.run(main())


def test_large_bodies_wait_for_each_other_and_for_nobody_else(serving, gate):
    async def main():
        async with serving(gate, max_queue=18) as served:  # large ones may take five of 20 places
            goes_on, order = threading.Event(), []

            def large(name):
                assert goes_on.wait(PATIENCE)
                order.append(name)

            waiting = [
                asyncio.ensure_future(served.run_in_reader(partial(large, name), LARGE))
                for name in "abcde"
            ]
            for _ in range(9):
                assert await served.run_in_reader(lambda: 1, LARGE - 1) == 1
            assert not order
            with pytest.raises(QueueFullError, match="too many large requests wait"):
                await served.run_in_reader(lambda: 1, LARGE)
            goes_on.set()
            await asyncio.gather(*waiting)
            assert order == [*"abcde"]

    asyncio.run(main())


@pytest.mark.parametrize("begun", [False, True])
def test_who_leaves_before_a_request_is_open_waits_for_no_grammar(
    serving, gate, monkeypatch, begun
):
    """Whether a thread has begun to prepare it or not."""

    async def main():
        async with serving(gate) as served:
            prepare, asked, goes_on = served.engine.prepare, [], threading.Event()
            held = Task()

            def slow(request, like):
                asked.append(request)
                assert goes_on.wait(PATIENCE)
                return replace(prepare(request, like), compiling=held)

            monkeypatch.setattr(served.engine, "prepare", slow)
            others = [asyncio.ensure_future(served.open([REQUEST])) for _ in range(3)]
            async with asyncio.timeout(PATIENCE):
                while len(asked) < 3:  # all threads are busy
                    await asyncio.sleep(0.001)
            left = others.pop() if begun else asyncio.ensure_future(served.open([REQUEST]))
            await asyncio.sleep(0.01)
            for _ in others:
                assert held.join()
            left.cancel()
            with pytest.raises(asyncio.CancelledError):
                await left
            goes_on.set()
            streams = [stream for one in others for stream in await one]
            await asyncio.to_thread(served._readers.shutdown)
            assert len(asked) == 3
            assert held._waiting == 1 + len(others) - begun
            for stream in streams:
                stream.close()

    asyncio.run(main())


def test_a_stream_knows_when_its_request_arrived(serving, gate):
    async def main():
        async with serving(gate) as served:
            (stream,) = await served.open([REQUEST], arrived=4.5)
            assert stream.arrived == 4.5
            stream.close()

    asyncio.run(main())


def test_drafts_that_nobody_reads_do_not_pile_up(engine_of, serving):
    async def main():
        async with serving(Random(V, seed=1, scale=0.1, canvas_length=8)) as served:
            (stream,) = await served.open([Request(token_ids=PROMPT, max_tokens=24)], drafts=True)
            while served.busy:
                await asyncio.sleep(0.001)
            events = await read(stream)
        kinds = [type(event) for event in events]
        assert kinds[-1] is Finished
        assert all(pair != (Draft, Draft) for pair in pairwise(kinds))

    asyncio.run(main())


def test_a_storm_of_readers_half_of_whom_leave_loses_nothing(serving, tokens_of):
    async def main():
        model = Gate(tokens_of('"hi there"<turn|>'), canvas_length=4)
        model.open.set()
        async with serving(model, slots=3, max_queue=100) as served:

            async def one(i):
                draw = random.Random(i)
                spec = Choice([f"yes {i % 7}", "no"]) if i % 2 else None
                request = Request(token_ids=PROMPT, constraint=spec, max_tokens=32)
                events = served.stream(request)
                last = None
                async for event in events:
                    last = event
                    if draw.random() < 0.4:
                        break
                await events.aclose()
                return last

            lasts = await asyncio.gather(*(one(i) for i in range(60)))
            assert all(isinstance(last, Finished | Committed) for last in lasts)
            assert sum(isinstance(last, Finished) for last in lasts) > 10
            while served.engine.busy:
                await asyncio.sleep(0.001)
            assert not served.busy
        assert sorted(served.engine._scheduler._free) == [0, 1, 2]

    asyncio.run(main())


def test_a_queue_of_less_than_nothing_is_refused(engine_of):
    async def main():
        with pytest.raises(DlmError, match="max_queue is -1: it takes 0 or more"):
            AsyncEngine(engine_of(Random(V, seed=1)), 1, -1)

    asyncio.run(main())


def test_closing_what_nobody_has_read_gives_all_slots_back(serving, gate):
    async def main():
        async with serving(gate, slots=2) as served:
            events = MergedEvents(await served.open([REQUEST] * 3), silence=1.0)
            assert served.busy
            events.close()
            assert not served.busy
            gate.open.set()
            while served.engine.busy:
                await asyncio.sleep(0.001)
        assert sorted(served.engine._scheduler._free) == [0, 1]

    asyncio.run(main())


def test_merged_events_are_all_told_each_stream_in_its_order(serving, gate):
    async def main():
        async with serving(gate, slots=2) as served:
            events = MergedEvents(await served.open([REQUEST] * 3), silence=0.01)
            assert await anext(events) is None  # nothing happens yet
            gate.open.set()
            told = [one async for one in events if one is not None]
        for i in range(3):
            assert [type(event) for j, event in told if i == j] == [Committed, Finished]

    asyncio.run(main())
