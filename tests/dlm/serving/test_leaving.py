"""Who leaves while a request is being opened leaves nothing behind."""

import asyncio
from concurrent.futures import CancelledError
from types import SimpleNamespace

import pytest

from dlm.serving.async_engine import PreparedRequests
from dlm.serving.guard import until_disconnected


def test_what_is_prepared_for_who_has_left_is_discarded():
    class Slow:
        """Somebody leaves while the second of their requests is being prepared."""

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


def test_what_was_opened_too_late_is_undone():
    class Staying:
        async def receive(self):
            await asyncio.Event().wait()

    async def main():
        async def work():
            asking.cancel()
            return "opened"

        undone = []
        asking = asyncio.ensure_future(until_disconnected(Staying(), work(), undone.append))
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.sleep(0)
        assert undone == ["opened"]

    asyncio.run(main())
