"""Stream of one request's events: what a slow reader finds in it."""

import pytest

from dlm import Committed, Draft
from dlm.serving.event_stream import EventStream

pytestmark = pytest.mark.anyio


def draft(passes: int) -> Draft:
    return Draft(
        request=0,
        step=1,
        committed=passes,
        entropy=0.0,
        tokens=[7],
        accepted=[True],
        masked=[False],
        pinned=0,
        suspect=1,
        passes=passes,
        repairs=0,
    )


def committed(token: int) -> Committed:
    return Committed(request=0, tokens=[token], answer=[token], text="a", reasoning="")


async def test_one_draft_waits_for_a_slow_reader_whatever_is_committed_between_drafts():
    stream = EventStream(0, drafts=True, leave=lambda stream: None)
    for passes in range(4):
        stream.put(committed(passes))
        stream.put(draft(passes))
    events = [await anext(stream) for _ in range(5)]
    assert events == [*map(committed, range(4)), draft(3)]
    stream.put(draft(4))
    stream.put(committed(5))
    stream.put(draft(5))
    assert [await anext(stream) for _ in range(2)] == [committed(5), draft(5)]
