"""Places in the queue, some of which are for clients that have none."""

import asyncio

import pytest
from gated import Gated
from values import PROMPT

from dlm import Request
from dlm.errors import QueueFullError
from dlm.serving.async_engine import AsyncEngine

REQUEST = Request(token_ids=PROMPT, max_tokens=8)


def test_places_are_kept_for_clients_that_have_none(engine_of, tokens_of):
    async def main():
        served = AsyncEngine(engine_of(model, slots=1), 1, 4, reserved=2)
        try:
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
        finally:
            model.open.set()
            await served.close()

    model = Gated(tokens_of("hi<turn|>"))
    asyncio.run(main())
