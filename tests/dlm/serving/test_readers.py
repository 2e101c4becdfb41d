"""Threads that clients share in turn."""

import asyncio
import threading
from functools import partial

import pytest
from waiting import PATIENCE

from dlm.serving.readers import Readers

pytestmark = pytest.mark.anyio


@pytest.fixture
def gated():
    """Readers of one thread, a gate that their functions wait for, and the order of these."""
    return threading.Event(), list[str]()


async def begun(readers, gate, order, names):
    """Begin functions of clients, whose names are the first letters of `names`."""

    def work(name):
        assert gate.wait(PATIENCE)
        order.append(name)

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
