"""An engine in a thread of its own, and its readers in an event loop."""

import asyncio
import random
import threading
from concurrent.futures import CancelledError
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from doubles import Random
from gated import Gated
from values import V
from waiting import PATIENCE

from dlm import (
    Choice,
    ChoiceQuestion,
    Committed,
    Decision,
    DlmError,
    Draft,
    Failed,
    Finished,
    Request,
    RequestError,
)
from dlm.errors import QueueFullError, UnavailableError
from dlm.grammar import Task
from dlm.serving.async_engine import AsyncEngine, PreparedRequests

pytestmark = pytest.mark.anyio
REQUEST = Request(prompt="hi", max_tokens=32)


class Broken(Random):
    def denoise(self, *args, **more):
        raise RuntimeError("/a/path of the device")


async def read(events):
    return [event async for event in events]


async def test_a_stream_ends_with_the_result_and_has_drafts_only_on_request(async_engine, gate):
    gate.open.set()
    async with async_engine(gate) as served:
        plain = await read(served.stream(REQUEST))
        drafted = await read(served.stream(REQUEST, drafts=True))
    assert [type(event) for event in plain] == [Committed, Finished]
    assert isinstance(drafted[0], Draft)
    assert plain[-1].result.text == drafted[-1].result.text == '"hi there"'


async def test_a_reader_that_disconnects_gives_its_slot_to_others(async_engine, gate):
    async with async_engine(gate, slots=1) as served:
        first = served.stream(REQUEST)
        pending = asyncio.ensure_future(anext(first))
        while not served.engine.busy:
            await asyncio.sleep(0.001)
        second = asyncio.ensure_future(read(served.stream(REQUEST)))
        pending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pending
        await first.aclose()
        gate.open.set()
        assert isinstance((await second)[-1], Finished)  # in the only slot
        assert not served.busy


async def test_requests_that_do_not_fit_the_queue_are_refused_until_others_have_ended(
    async_engine, gate
):
    async with async_engine(gate, slots=1, max_queue=2) as served:
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
        with pytest.raises(RequestError, match="requests must be at most 3 at once, got 4"):
            await served.open([REQUEST] * 4)  # they never fit
        assert not served.busy
        assert await served.run_in_reader(lambda: 1) == 1


async def test_a_request_that_fails_ends_alone(async_engine, gate):
    gate.open.set()
    async with async_engine(gate) as served:
        with pytest.raises(RequestError, match="prompt: a token must be 0 to 1535, got 99999"):
            await read(served.stream(Request(token_ids=[99999])))
        short = Request(prompt="hi", constraint=Choice(["quite long indeed"]), max_tokens=1)
        (refused,) = await read(served.stream(short))
        assert isinstance(refused, Failed)
        assert isinstance(refused.error, RequestError)
        assert isinstance((await read(served.stream(REQUEST)))[-1], Finished)
        assert served.problem is None


async def test_all_streams_of_a_failed_engine_end_with_an_error_that_names_no_path(async_engine):
    async with async_engine(Broken(V, seed=1)) as served:
        streams = await served.open([REQUEST] * 3)
        for stream in streams:
            (event,) = await read(stream)
            assert isinstance(event, Failed)
            assert isinstance(event.error, UnavailableError)
            assert "path" not in str(event.error)
        assert served.problem == "the engine has failed: RuntimeError"
        with pytest.raises(UnavailableError, match="the engine has failed"):
            await served.open([REQUEST])


async def test_draining_lets_requests_finish_and_refuses_new_ones(async_engine, gate):
    async with async_engine(gate, slots=1) as served:
        streams = await served.open([REQUEST] * 3)
        draining = asyncio.ensure_future(served.drain(PATIENCE))
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError, match="shutting down"):
            await served.open([REQUEST])
        gate.open.set()
        await draining
        assert [type((await read(s))[-1]) for s in streams] == [Finished] * 3


async def test_draining_waits_for_a_request_that_is_being_prepared(async_engine, gate, monkeypatch):
    loop = asyncio.get_running_loop()
    async with async_engine(gate) as served:
        gate.open.set()
        prepare, begun, resumed = served.engine.prepare, asyncio.Event(), threading.Event()

        def slow(request, like):
            loop.call_soon_threadsafe(begun.set)
            assert resumed.wait(PATIENCE)
            return prepare(request, like)

        monkeypatch.setattr(served.engine, "prepare", slow)
        opening = asyncio.ensure_future(served.open([REQUEST]))
        await asyncio.wait_for(begun.wait(), PATIENCE)
        draining = asyncio.ensure_future(served.drain(PATIENCE))
        await asyncio.sleep(0)
        resumed.set()
        (stream,) = await opening
        assert isinstance((await read(stream))[-1], Finished)
        await draining


async def test_draining_ends_requests_that_take_longer_than_the_limit(async_engine, gate):
    async with async_engine(gate, slots=1) as served:
        streams = await served.open([REQUEST] * 2)
        await served.drain(0)
        for stream in streams:
            (event,) = await read(stream)
            assert isinstance(event.error, UnavailableError)


async def test_an_engine_is_not_stepped_after_its_last_request_once_the_grammar_is_warm(
    async_engine, gate, monkeypatch
):
    gate.open.set()
    async with async_engine(gate) as served:
        engine, steps = served.engine, []
        step = engine.step
        monkeypatch.setattr(engine, "step", lambda: steps.append(1) or step())
        constrained = Request(prompt="hi", constraint=Choice(["a", "b"]), max_tokens=32)
        await read(served.stream(constrained))
        while engine.cold or engine.busy:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)  # the thread may still be in its last step
        before = len(steps)
        await asyncio.sleep(0.2)
        assert len(steps) == before > 0


async def test_a_result_is_awaited_and_the_slots_are_those_of_the_engine(engine_of, gate):
    engine = engine_of(gate, slots=2)
    served = AsyncEngine(engine, max_queue=3)
    assert (engine.slots, served.max_requests) == (2, 5)
    gate.open.set()
    assert (await served.generate(REQUEST)).text == '"hi there"'
    with pytest.raises(RequestError, match="prompt: a token must be 0 to 1535, got 99999"):
        await served.generate(Request(token_ids=[99_999], max_tokens=4))
    await served.close()


async def test_a_result_that_takes_too_long_is_cancelled(async_engine, gate):
    async with async_engine(gate, slots=1) as served:
        with pytest.raises(TimeoutError):
            await served.generate(REQUEST, timeout=0.05)
        gate.open.set()
        assert (await served.generate(REQUEST, timeout=PATIENCE)).text == '"hi there"'
        assert not served.busy


@pytest.mark.parametrize("begun", [False, True])
async def test_a_cancelled_opening_no_longer_waits_for_its_grammar(
    async_engine, gate, monkeypatch, begun
):
    async with async_engine(gate) as served:
        prepare, prepared, resumed = served.engine.prepare, [], threading.Event()
        held = Task()

        def slow(request, like):
            prepared.append(request)
            assert resumed.wait(PATIENCE)
            return replace(prepare(request, like), compiling=held)

        monkeypatch.setattr(served.engine, "prepare", slow)
        others = [asyncio.ensure_future(served.open([REQUEST])) for _ in range(3)]
        async with asyncio.timeout(PATIENCE):
            while len(prepared) < 3:  # all threads are busy
                await asyncio.sleep(0.001)
        cancelled = others.pop() if begun else asyncio.ensure_future(served.open([REQUEST]))
        await asyncio.sleep(0.01)
        for _ in others:
            assert held.join()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        resumed.set()
        streams = [stream for one in others for stream in await one]
        await asyncio.to_thread(served._readers.close, wait=True)
        assert len(prepared) == 3
        assert held._waiting == 1 + len(others) - begun
        for stream in streams:
            stream.close()


async def test_a_stream_knows_when_its_request_arrived(async_engine, gate):
    async with async_engine(gate) as served:
        (stream,) = await served.open([REQUEST], arrived=4.5)
        assert stream.arrived == 4.5
        stream.close()


async def test_a_newer_draft_replaces_one_that_was_not_read(engine_of, async_engine):
    async with async_engine(Random(V, seed=1, scale=0.1, canvas_length=8)) as served:
        (stream,) = await served.open([Request(prompt="hi", max_tokens=24)], drafts=True)
        while served.busy:
            await asyncio.sleep(0.001)
        events = await read(stream)
    kinds = [type(event) for event in events]
    assert kinds[-1] is Finished
    assert all(pair != (Draft, Draft) for pair in pairwise(kinds))


async def test_many_readers_half_of_whom_disconnect_leak_no_slot(async_engine, tokens_of):
    model = Gated(tokens_of('"hi there"<turn|>'), canvas_length=4)
    model.open.set()
    async with async_engine(model, slots=3, max_queue=100) as served:

        async def one(i):
            draw = random.Random(i)
            spec = Choice([f"yes {i % 7}", "no"]) if i % 2 else None
            request = Request(prompt="hi", constraint=spec, max_tokens=32)
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


async def test_a_queue_of_negative_length_is_refused(engine_of):
    with pytest.raises(DlmError, match="max_queue must be at least 0, got -1"):
        AsyncEngine(engine_of(Random(V, seed=1)), 1, -1)


async def test_places_are_reserved_for_clients_that_have_none(async_engine, gate):
    async with async_engine(gate, slots=1, max_queue=4, reserved=2) as served:
        streams = await served.open([REQUEST] * 3, client="a")
        with pytest.raises(QueueFullError, match="of 3 at most"):
            await served.open([REQUEST], client="a")
        with pytest.raises(QueueFullError):
            await served.run_in_reader(lambda: None, client="a")
        assert await served.run_in_reader(lambda: 7, client="b") == 7
        streams += await served.open([REQUEST], client="b")
        with pytest.raises(QueueFullError):
            await served.open([REQUEST], client="b")
        streams += await served.open([REQUEST], client="c")
        with pytest.raises(QueueFullError, match="of 5 at most"):
            await served.open([REQUEST], client="d")
        streams.pop(0).close()
        streams += await served.open([REQUEST], client="d")
        for one in streams:
            one.close()


def test_requests_prepared_for_a_client_that_has_disconnected_are_discarded():
    class Slow:
        """Engine whose client disconnects while its second request is being prepared."""

        def prepare(self, number, like=None):
            if number == 2:
                opening.__exit__(KeyError, KeyError(), None)
            return SimpleNamespace(discard=lambda: discarded.append(number))

    opening, discarded = PreparedRequests(Slow()), []
    for number in (1, 2):
        opening.prepare(number)
    assert discarded == [1, 2]
    with pytest.raises(CancelledError):
        opening.prepare(3)


async def test_a_decision_is_a_stream_of_one_event(async_engine):
    decision = Decision(request=REQUEST, questions=[{"type": "predicate"}])
    async with async_engine(Random(V, seed=1)) as served:
        (event,) = await read(served.stream(decision))
    assert 0 < event.answers[0].probability < 1


async def test_questions_are_answered_and_a_context_closes_its_engine(engine_of):
    engine = engine_of(Random(V, seed=1))
    questions = [{"type": "predicate"}, ChoiceQuestion(choices=["a", "b"])]
    async with AsyncEngine(engine) as served:
        answers = await served.decide(REQUEST, questions, timeout=PATIENCE)
        with pytest.raises(RequestError, match="request must be a Request, got a Decision"):
            await served.generate(Decision(request=REQUEST, questions=questions))
        with pytest.raises(RequestError, match="questions must have 1 to 200 entries, got 0"):
            await served.decide(REQUEST, [])
        assert not served.busy
    assert [answer.type for answer in answers] == ["predicate", "choice"]
    assert sum(answers[1].probabilities.values()) == pytest.approx(1)
    with pytest.raises(DlmError, match="the engine is closed"):
        engine.add(REQUEST)
    with pytest.raises(UnavailableError, match="the server is shutting down"):
        await served.generate(REQUEST)


def test_an_engine_made_without_an_event_loop_belongs_to_that_of_its_first_call(engine_of, gate):
    gate.open.set()
    served = AsyncEngine(engine_of(gate))
    other = AsyncEngine(engine_of(gate))

    async def once():
        result = await served.generate(REQUEST)
        await served.close()
        assert (await other.generate(REQUEST)).text == result.text
        return result.text

    assert asyncio.run(once()) == '"hi there"'
    with pytest.raises(DlmError, match="belongs to the event loop of its first call"):
        asyncio.run(other.generate(REQUEST))
    asyncio.run(other.close())


def test_an_engine_that_was_never_called_is_closed(engine_of, gate):
    asyncio.run(AsyncEngine(engine_of(gate)).close())
