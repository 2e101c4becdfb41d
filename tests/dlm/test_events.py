"""Streams of single requests: they yield their own events and leave those of others."""

import pytest
from doubles import Random
from driven import events_of, stepping
from values import PROMPT, V

from dlm import (
    Choice,
    Committed,
    Decision,
    DlmError,
    Draft,
    Finished,
    JsonSchema,
    Request,
    RequestError,
)


@pytest.fixture
def engine(scripted):
    return scripted('"hi"<turn|>', slots=3)


def request(**more):
    return Request(token_ids=PROMPT, max_tokens=16, **more)


def test_a_stream_ends_with_the_result_that_generate_returns(engine):
    *events, last = engine.stream(request(constraint=JsonSchema({"type": "string"})))
    result = engine.generate(request(constraint=JsonSchema({"type": "string"})))
    assert isinstance(last, Finished)
    assert last.result.text == result.text == '"hi"'
    assert all(isinstance(event, Draft | Committed) for event in events)
    assert "".join(event.text for event in events if isinstance(event, Committed)) == '"hi"'
    assert len({event.request for event in [*events, last]}) == 1
    assert not engine.busy


def test_events_of_other_requests_wait_for_step(engine):
    other = engine.add(request())
    *_, last = engine.stream(request())
    assert last.request != other
    events = events_of(engine)
    assert {event.request for event in events} == {other}
    assert isinstance(events[-1], Finished)
    alone = engine.generate(request())
    assert events[-1].result.token_ids == alone.token_ids
    committed = [
        token for event in events if isinstance(event, Committed) for token in event.tokens
    ]
    assert committed[:-1] == alone.token_ids  # the last one is the stop


def test_steps_of_another_caller_take_no_event_of_a_stream(engine):
    stream = engine.stream(request())
    first = next(stream)
    while engine.busy:
        assert engine.step() == []
    rest = list(stream)
    alone = list(engine.stream(request()))
    assert [type(event) for event in [first, *rest]] == [type(event) for event in alone]


def test_two_streams_in_turns_yield_their_own_events(engine):
    one, other = engine.stream(request(seed=1)), engine.stream(request(seed=2))
    found = {1: [next(one)], 2: [next(other)]}
    found[1] += list(one)
    found[2] += list(other)
    for events in found.values():
        assert isinstance(events[-1], Finished)
        assert len({event.request for event in events}) == 1
    assert found[1][0].request != found[2][0].request


def test_a_stream_that_is_closed_early_cancels_its_request(engine_of):
    engine = engine_of(Random(V, seed=3), slots=1)
    stream = engine.stream(request())
    next(stream)
    assert engine.busy
    stream.close()
    assert not engine.busy
    assert engine.occupancy.running == 0
    assert engine.generate(request()).finish_reason in ("stop", "length")


def test_a_stream_that_is_not_read_admits_nothing(engine):
    engine.stream(request())
    assert not engine.busy


def test_a_failure_of_the_request_is_raised(engine):
    stream = engine.stream(request(constraint=Choice(["yes" * 100])))
    with pytest.raises(RequestError, match="max_tokens is 16"):
        list(stream)
    assert not engine.busy


def test_a_request_that_cannot_be_admitted_is_refused(engine):
    with pytest.raises(RequestError, match="max_tokens"):
        next(engine.stream(Request(token_ids=PROMPT, max_tokens=10**9)))
    with pytest.raises(RequestError, match="stream must be given a Request, got a Decision"):
        next(engine.stream(Decision(request=request(), questions=[{"type": "predicate"}])))
    with pytest.raises(RequestError, match="stream must be given a Request, got a list"):
        next(engine.stream([request()]))
    engine.close()
    with pytest.raises(DlmError, match="closed"):
        next(engine.stream(request()))


def test_cancelling_by_number_ends_a_stream_with_an_error(engine_of):
    engine = engine_of(Random(V, seed=3))
    other = engine.add(request(seed=5))
    stream = engine.stream(request())
    engine.cancel(next(stream).request)
    with pytest.raises(DlmError, match="cancelled"):
        list(stream)
    assert engine.busy  # with the other one
    engine.cancel(other)


def test_a_stream_runs_beside_a_thread_that_steps(engine_of):
    engine = engine_of(Random(V, seed=3), slots=4)
    with stepping(engine) as ends:
        others = [engine.add(request(seed=seed)) for seed in range(5)]
        lasts = [list(engine.stream(request(seed=seed)))[-1] for seed in range(5)]
        for stream in [engine.stream(request(seed=seed)) for seed in range(5)]:
            next(stream)
            stream.close()
    assert all(isinstance(end, Finished) for end in [*lasts, *ends])
    assert sorted(end.request for end in ends) == sorted(others)
    assert not engine.busy
