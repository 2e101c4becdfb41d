"""Engines that are stepped until no request is left."""

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from values import PROMPT
from waiting import PATIENCE

from dlm import Committed, Engine, Failed, Finished, Request, RequestError, Result, Spec
from dlm.events import Event


def events_of(engine: Engine) -> list[Event]:
    """Step an engine until it is idle and return its events."""
    events: list[Event] = []
    while engine.busy:
        events += engine.step()
    return events


def ends_of(engine: Engine) -> dict[int, Finished | Failed]:
    """Step an engine until it is idle and return the ends of requests, by number."""
    ends = [event for event in events_of(engine) if isinstance(event, Finished | Failed)]
    assert len({end.request for end in ends}) == len(ends)
    return {end.request: end for end in ends}


def streamed(engine: Engine, request: Request) -> tuple[Result, list[Committed]]:
    """Answer one request and return its result and what it committed on the way."""
    engine.add(request)
    *events, last = events_of(engine)
    assert isinstance(last, Finished)
    return last.result, [event for event in events if isinstance(event, Committed)]


def fewest_tokens(engine: Engine, constraint: Spec) -> int:
    """Return the size of the shortest answer, as a refusal states it; 1 if nothing is refused."""
    request = Request(token_ids=PROMPT, constraint=constraint, max_tokens=1)
    try:
        engine.generate(request)
    except RequestError as error:
        found = re.search(r"max_tokens is 1: the shortest answer takes (\d+) tokens", str(error))
        assert found is not None
        return int(found[1])
    return 1


@contextmanager
def stepping(engine: Engine) -> Iterator[list[Finished | Failed]]:
    """Step an engine in a thread during a block, and after it until it is idle.

    Yields the list to which the ends of requests are added; an error in the thread is raised."""
    over, ends = threading.Event(), list[Finished | Failed]()

    def step() -> None:
        while not over.is_set() or engine.busy:
            ends.extend(event for event in engine.step() if isinstance(event, Finished | Failed))

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(step)
        try:
            yield ends
        finally:
            over.set()
        running.result(PATIENCE)
