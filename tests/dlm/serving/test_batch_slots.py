"""Slots of rows, around an engine of which only the load matters."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dlm.serving.batch_slots import BatchSlots


class Load:
    """An engine under whose `under_way` tests put what they like."""

    def __init__(self, slots):
        self.engine, self.under_way = SimpleNamespace(slots=slots), 0
        self._fewer = asyncio.Event()

    async def until_fewer(self):
        await self._fewer.wait()

    def end(self, count):
        self.under_way -= count
        self._fewer.set()
        self._fewer.clear()


class Row:
    """A row of `client` that notes when it enters, and keeps its slot until it is to end."""

    def __init__(self, slots, load, client, entered):
        async def run():
            async with slots.slot(client):
                load.under_way += 1
                entered.append(client)
                try:
                    await self.ending.wait()
                finally:
                    load.under_way -= 1

        self.ending = asyncio.Event()
        self.task = asyncio.ensure_future(run())


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def slots_of(count) -> tuple[Any, BatchSlots]:
    load: Any = Load(count)
    return load, BatchSlots(load)


@pytest.mark.anyio
async def test_rows_have_half_of_the_slots_and_clients_take_turns():
    load, slots = slots_of(4)
    entered = []
    rows = [Row(slots, load, client, entered) for client in "aaaaabb"]
    await settle()
    assert entered == ["a", "a"]
    for row in rows:
        row.ending.set()
        await settle()
    assert "".join(entered) == "aaababa"
    assert load.under_way == 0
    slots.close()


@pytest.mark.anyio
@pytest.mark.parametrize(("count", "beside"), [(1, 0), (2, 0), (4, 2)])
async def test_a_row_enters_only_while_another_slot_stays_free(count, beside):
    load, slots = slots_of(count)
    load.under_way = beside + 1
    entered = []
    row = Row(slots, load, "a", entered)
    await settle()
    assert entered == []
    load.end(1)
    await settle()
    assert entered == ["a"]
    row.ending.set()
    await row.task
    slots.close()


@pytest.mark.anyio
@pytest.mark.parametrize("steps", range(5))
async def test_a_row_that_is_cancelled_leaves_its_slot_or_its_turn(steps):
    load, slots = slots_of(2)
    entered = []
    first, cancelled, last = [Row(slots, load, client, entered) for client in "abc"]
    await settle()
    first.ending.set()
    for _ in range(steps):  # in one of them its turn comes, and it has not gone on
        await asyncio.sleep(0)
    cancelled.task.cancel()
    await settle()
    assert cancelled.task.cancelled()
    assert entered[-1] == "c"
    last.ending.set()
    await last.task
    slots.close()
