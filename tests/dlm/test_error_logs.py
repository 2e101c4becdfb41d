"""Logs of errors that end a request: bugs are logged, mistakes of users are not."""

import logging

import pytest
from doubles import Dreamer
from values import PROMPT, V

from dlm import Autoregressive, DlmError, Failed, Regex, Request
from dlm.errors import RequestError, failure
from dlm.grammar import CrashError, InvalidGrammarError, LimitError


@pytest.fixture
def logged(caplog):
    """Return the records that were logged as errors."""
    caplog.set_level(logging.ERROR, logger="dlm")
    return lambda: [record for record in caplog.records if record.name == "dlm"]


@pytest.mark.parametrize("left_to_right", [False, True])
def test_a_bug_in_a_constraint_is_logged_with_its_traceback(left_to_right, engine_of, logged):
    more = {"decoding": Autoregressive()} if left_to_right else {}
    engine = engine_of(Dreamer(V, 1), **more)
    number = engine.add(Request(token_ids=PROMPT, constraint=Regex("[a-c]{40}"), max_tokens=64))

    class Buggy:
        work = spent = 0

        def guide(self, scores, fixed):
            raise ZeroDivisionError("a bug")

        def look(self, draft, refused, exact):
            raise ZeroDivisionError("a bug")

    ends = []
    while engine.busy:
        for sequence in engine._scheduler.running.values():
            if left_to_right:
                sequence.state.constraint, sequence.state.next_tokens = Buggy(), None
            else:
                sequence.constraint = Buggy()
        ends += [event for event in engine.step() if isinstance(event, Failed)]
    assert [end.request for end in ends] == [number]
    (record,) = logged()
    assert "Traceback" in record.getMessage()
    assert "ZeroDivisionError: a bug" in record.getMessage()


@pytest.mark.parametrize(
    ("error", "bug"),
    [
        (KeyError("x"), True),
        (AssertionError(), True),
        (CrashError("a process ended"), True),
        (RequestError("max_tokens is 0"), False),
        (DlmError("the result is refused"), False),
        (LimitError("it takes too long"), False),
        (InvalidGrammarError("regex", "an open bracket"), False),
    ],
)
def test_only_errors_that_no_user_can_cause_are_logged(error, bug, logged):
    assert isinstance(failure(error), DlmError)
    assert len(logged()) == bug
