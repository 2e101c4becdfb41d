"""Many requests of one call: errors in the place of results, and progress."""

import pytest
from doubles import Obsessed
from values import PROMPT, V

from dlm import DlmError, Regex, Request, RequestError
from dlm.request import Result

FINE = Request(token_ids=PROMPT, max_tokens=4)
REFUSED = Request(token_ids=[9999])
TOO_SMALL = Request(token_ids=PROMPT, max_tokens=2, constraint=Regex("[a-f]{90}"))


@pytest.mark.parametrize("doomed", [REFUSED, TOO_SMALL])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_error_stands_in_the_place_of_its_result(engine_of, doomed, at):
    engine = engine_of(Obsessed(V, [1]))
    requests = [FINE, FINE]
    requests.insert(at, doomed)
    ends = engine.generate(requests, return_exceptions=True)
    assert [isinstance(end, DlmError) for end in ends] == [i == at for i in range(3)]
    assert [isinstance(end, Result) for end in ends] == [i != at for i in range(3)]
    assert not engine.busy
    with pytest.raises(DlmError):
        engine.generate(requests)
    assert not engine.busy
    assert engine.generate([FINE])[0].token_ids == ends[at - 1].token_ids


def test_all_may_fail_and_none_may_be_given(engine_of):
    engine = engine_of(Obsessed(V, [1]))
    errors = engine.generate([REFUSED, TOO_SMALL, "hi"], return_exceptions=True)
    assert [type(error) for error in errors if isinstance(error, DlmError)] == [*map(type, errors)]
    assert "9999" in str(errors[0])
    assert isinstance(errors[2], RequestError)
    assert engine.generate([], return_exceptions=True) == []


@pytest.mark.parametrize("return_exceptions", [False, True])
def test_progress_counts_the_requests_that_have_ended(engine_of, return_exceptions):
    engine = engine_of(Obsessed(V, [1]), slots=2)
    requests = [FINE] * 5 + [REFUSED] * return_exceptions
    calls = list[tuple[int, int]]()
    engine.generate(
        requests,
        return_exceptions=return_exceptions,
        progress=lambda done, total: calls.append((done, total)),
    )
    done = [count for count, _ in calls]
    assert {total for _, total in calls} == {len(requests)}
    assert done == sorted({*done})
    assert done[0] == return_exceptions
    assert done[-1] == len(requests)
    assert len(done) > 2


def test_progress_of_one_request(engine_of):
    calls = list[tuple[int, int]]()
    engine_of(Obsessed(V, [1])).generate(FINE, progress=lambda *call: calls.append(call))
    assert calls == [(0, 1), (1, 1)]


def test_an_error_of_progress_leaves_nothing_running(engine_of):
    engine = engine_of(Obsessed(V, [1]))

    def interrupted(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate([FINE] * 2, return_exceptions=True, progress=interrupted)
    assert not engine.busy
    engine.generate(FINE)
