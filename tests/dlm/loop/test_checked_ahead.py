"""Checks of answers that begin a pass before the answer is committed."""

import json

import pytest
from specs import checked
from values import PROMPT

from dlm import Draft, Failed, Finished, Request
from dlm.grammar import InvalidValueError, Task

TWICE = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "uniqueItems": True}
ANSWER = "[1, 2]"


class Checks:
    """The checks that an engine has begun. They end when a test says so."""

    def __init__(self, engine, monkeypatch):
        self.tasks: list[Task] = []
        monkeypatch.setattr(engine._compiler, "check", self._begin)

    def _begin(self, spec, tokens, seconds):
        self.tasks.append(Task())
        return self.tasks[-1]


@pytest.fixture
def engine(scripted):
    engine = scripted(ANSWER + "<turn|>")
    yield engine
    engine.close()


@pytest.fixture
def checks(engine, monkeypatch):
    return Checks(engine, monkeypatch)


def added(engine, schema=TWICE):
    return engine.add(Request(token_ids=PROMPT, constraint=checked(schema), max_tokens=64, seed=0))


def until(engine, happens, most=200):
    """Step until something happens; returns the events of the last step."""
    for _ in range(most):
        events = engine.step()
        if happens(events):
            return events
    raise AssertionError("it never happens")


def committed(engine):
    return [sequence.tokens for sequence in engine._scheduler.running.values()] not in ([], [[]])


def test_an_answer_whose_check_is_done_ends_with_its_last_pass(engine, checks):
    added(engine)
    until(engine, lambda events: checks.tasks)
    assert not committed(engine)
    checks.tasks[0].set_result([1, 2])
    events = until(engine, lambda events: any(isinstance(event, Finished) for event in events))
    assert [type(event) for event in events if isinstance(event, Draft | Finished)] == [
        Draft,
        Finished,
    ]
    assert events[-1].result.parsed == [1, 2]
    assert len(checks.tasks) == 1


def test_a_check_that_takes_longer_is_waited_for(engine, checks):
    added(engine)
    until(engine, lambda events: committed(engine))
    assert not any(isinstance(event, Draft) for _ in range(3) for event in engine.step())
    checks.tasks[0].set_result([1, 2])
    assert isinstance(engine.step()[-1], Finished)
    assert len(checks.tasks) == 1


def test_a_check_of_another_answer_does_not_count(engine, checks):
    added(engine)
    until(engine, lambda events: checks.tasks)
    (sequence,) = engine._scheduler.running.values()
    sequence.ahead = [*sequence.ahead[0], 7], checks.tasks[0]
    until(engine, lambda events: committed(engine))
    ahead, check = checks.tasks
    assert ahead.cancelled()
    check.set_result([1, 2])
    assert isinstance(engine.step()[-1], Finished)


def test_an_answer_that_was_refused_ahead_is_written_again(engine, checks):
    added(engine)
    until(engine, lambda events: checks.tasks)
    checks.tasks[0].set_exception(InvalidValueError("1 comes twice", [1]))
    until(engine, lambda events: len(checks.tasks) > 1)
    (sequence,) = engine._scheduler.running.values()
    assert sequence.refusals == 1
    checks.tasks[-1].set_result([1, 1])
    assert isinstance(until(engine, lambda events: not engine.busy)[-1], Finished | Failed)


def test_a_request_that_is_cancelled_leaves_the_check_begun_ahead(engine, checks):
    number = added(engine)
    until(engine, lambda events: checks.tasks)
    engine.cancel(number)
    assert checks.tasks[0].cancelled()


def test_what_is_checked_ahead_is_the_answer(engine, monkeypatch):
    checked_tokens = []
    check = engine._compiler.check

    def noted(spec, tokens, seconds):
        checked_tokens.append(engine.vocabulary.text(tokens))
        return check(spec, tokens, seconds)

    monkeypatch.setattr(engine._compiler, "check", noted)
    result = engine.generate(
        Request(token_ids=PROMPT, constraint=checked(TWICE), max_tokens=64, seed=0)
    )
    assert checked_tokens == [result.text]
    assert result.parsed == json.loads(ANSWER)
