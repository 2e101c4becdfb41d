"""Engines that are stepped until no request is left."""

from dlm import Engine, Failed, Finished
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
