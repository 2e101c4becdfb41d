"""Threads that clients share in turn."""

import asyncio
import threading
from functools import partial

import pytest
from waiting import PATIENCE

from dlm.errors import QueueFullError
from dlm.openai.body import LARGE
from dlm.serving.readers import Readers

pytestmark = pytest.mark.anyio


@pytest.fixture
def gated():
    """Readers of one thread, a gate that their functions wait for, and the order of these."""
    return threading.Event(), list[str]()


def noting(gate, order):
    """Return a function that waits for `gate` and adds its argument to `order`."""

    def work(name):
        assert gate.wait(PATIENCE)
        order.append(name)

    return work


async def begun(readers, gate, order, names):
    """Begin functions of clients, whose names are the first letters of `names`."""
    work = noting(gate, order)
    tasks = {
        name: asyncio.ensure_future(readers.run(partial(work, name), name[0])) for name in names
    }
    await asyncio.sleep(0.01)
    return tasks


async def test_clients_take_turns(gated):
    gate, order = gated
    readers = Readers(1, "test")
    tasks = await begun(readers, gate, order, ["a1", "a2", "a3", "a4", "b1", "b2", "c1"])
    gate.set()
    await asyncio.gather(*tasks.values())
    assert order == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]
    readers.close()


async def test_a_function_whose_caller_has_left_is_not_begun(gated):
    gate, order = gated
    readers = Readers(1, "test")
    tasks = await begun(readers, gate, order, ["a1", "a2", "b1", "b2"])
    for name in ("a1", "b1"):  # the first of them runs already
        tasks.pop(name).cancel()
    await asyncio.sleep(0.01)
    gate.set()
    await asyncio.gather(*tasks.values())
    assert order == ["a1", "a2", "b2"]
    readers.close()


async def test_a_caller_that_leaves_as_its_turn_comes_gives_the_thread_back():
    readers = Readers(1, "test")
    left = asyncio.ensure_future(readers.run(lambda: 1))
    await asyncio.sleep(0)  # its turn has come, and it has not begun
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    async with asyncio.timeout(PATIENCE):
        assert await readers.run(lambda: 2) == 2
    readers.close()


async def test_an_error_is_raised_and_the_thread_goes_on():
    readers = Readers(1, "test")
    with pytest.raises(ZeroDivisionError):
        await readers.run(lambda: 1 // 0)
    assert await readers.run(lambda: 2) == 2
    readers.close()


async def test_the_loop_goes_on_while_a_body_is_read(async_engine, gate):
    async with async_engine(gate) as served:
        read = threading.Event()
        reading = asyncio.ensure_future(served.run_in_reader(lambda: read.wait(PATIENCE)))
        await asyncio.sleep(0.01)
        read.set()  # would never be, were the loop not free
        assert await reading


async def test_large_bodies_are_read_one_at_a_time_and_do_not_delay_small_ones(
    async_engine, gate, gated
):
    async with async_engine(gate, max_queue=18) as served:  # large ones may take five of 20 places
        resumed, order = gated
        large = noting(resumed, order)
        waiting = [
            asyncio.ensure_future(served.run_in_reader(partial(large, name), LARGE))
            for name in "abcde"
        ]
        for _ in range(9):
            assert await served.run_in_reader(lambda: 1, LARGE - 1) == 1
        assert not order
        with pytest.raises(QueueFullError, match="too many large requests wait"):
            await served.run_in_reader(lambda: 1, LARGE)
        resumed.set()
        await asyncio.gather(*waiting)
        assert order == [*"abcde"]


async def test_images_delay_neither_bodies_nor_are_delayed_by_them(async_engine, gate):
    async with async_engine(gate, max_queue=18) as served:
        resumed = threading.Event()
        decoding = asyncio.ensure_future(
            served.run_in_reader(lambda: resumed.wait(PATIENCE), images=True)
        )
        await asyncio.sleep(0.01)
        assert await served.run_in_reader(lambda: 1, LARGE) == 1
        assert await served.run_in_reader(lambda: 1) == 1
        assert not decoding.done()
        resumed.set()
        assert await decoding


async def test_a_client_with_images_waits_for_one_image_of_another_client(
    async_engine, gate, gated
):
    async with async_engine(gate, max_queue=38) as served:
        resumed, order = gated
        decode = noting(resumed, order)
        waiting = [
            asyncio.ensure_future(
                served.run_in_reader(partial(decode, client), client=client, images=True)
            )
            for client in "aaaaab"
        ]
        await asyncio.sleep(0.01)
        resumed.set()
        await asyncio.gather(*waiting)
        assert order == [*"aabaaa"]


async def test_long_answers_of_clients_are_written_in_turn(async_engine, gate, gated):
    async with async_engine(gate) as served:
        resumed, order = gated
        write = noting(resumed, order)
        waiting = [
            asyncio.ensure_future(served.run_in_writer(partial(write, client), client))
            for client in "aaab"
        ]
        await asyncio.sleep(0.01)
        assert await served.run_in_reader(lambda: 1) == 1
        resumed.set()
        await asyncio.gather(*waiting)
        assert order == [*"aaba"]
