"""Logits that are NaN or infinite end their own request with an error, and no other."""

import logging

import pytest
from doubles import Fixed
from values import V

from dlm import Autoregressive, Choice, Diffusion, DlmError, PredicateQuestion, Request
from dlm.errors import UndefinedLogitsError
from dlm.events import Failed, Finished

SICK = 400  # a token: prompts that hold it have logits without numbers
DECODINGS = [Diffusion(), Autoregressive(), Autoregressive(drafts=True)]


class Sick(Fixed):
    """Fixed logits; for a prompt that holds `SICK`, those of `tokens` at a position are `value`."""

    def __init__(self, value: float, position: int = 0, tokens: slice = slice(None)):
        super().__init__(V, seed=3)
        self._value, self._where = value, (position, tokens)

    def wish(self, committed, canvas, soft_embedding):
        logits = super().wish(committed, canvas, soft_embedding).clone()
        if SICK in committed:
            logits[self._where] = self._value
        return logits


@pytest.mark.parametrize("decoding", DECODINGS, ids=lambda d: d.name)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("constraint", [None, Choice(["a", "b"])])
def test_a_pass_without_numbers_fails_its_request_and_no_other(
    engine_of, decoding, value, constraint
):
    engine = engine_of(Sick(value), slots=3, decoding=decoding)
    requests = [
        Request(token_ids=[300, token, 300], max_tokens=6, constraint=constraint)
        for token in (5, SICK, 6)
    ]
    alone = [engine.generate(requests[i]).text for i in (0, 2)]
    numbers = [engine.add(request) for request in requests]
    ends = {}
    while engine.busy:
        for event in engine.step():
            if isinstance(event, Failed | Finished):
                ends[event.request] = event
    first, sick, last = (ends[number] for number in numbers)
    assert isinstance(sick, Failed)
    assert isinstance(sick.error, UndefinedLogitsError)
    assert [first.result.text, last.result.text] == alone
    assert engine.generate(requests[0]).text == alone[0]  # the engine goes on
    engine.close()


def test_the_error_says_what_happened_and_is_not_logged_as_a_bug(engine_of, caplog):
    engine = engine_of(Sick(float("nan"), position=3), slots=1)
    with caplog.at_level(logging.ERROR), pytest.raises(DlmError, match="logits are NaN or infin"):
        engine.generate(Request(token_ids=[300, SICK], max_tokens=6))
    assert not caplog.records
    engine.close()


def test_minus_infinity_is_a_token_that_cannot_come(engine_of):
    engine = engine_of(Sick(float("-inf"), tokens=slice(7, 9)), slots=1)
    assert engine.generate(Request(token_ids=[300, SICK], max_tokens=6)).finish_reason
    engine.close()


@pytest.mark.parametrize(("decoding", "by"), [(DECODINGS[0], "canvas"), (DECODINGS[1], "causal")])
def test_a_question_without_numbers_has_no_answer(engine_of, decoding, by):
    engine = engine_of(Sick(float("nan")), slots=2, decoding=decoding)
    with pytest.raises(UndefinedLogitsError):
        engine.decide(Request(token_ids=[300, SICK]), [PredicateQuestion()], by=by)
    engine.close()
