"""Decisions beside requests: each has the answer that it has alone, and none waits."""

from collections import defaultdict

import numpy as np
import pytest
import torch
from doubles import Double, Fixed, Random
from exhaustive import by_default
from values import PROMPT, V

from dlm import (
    Choice,
    ChoiceQuestion,
    Decided,
    Decision,
    Draft,
    Engine,
    Failed,
    Finished,
    JsonSchema,
    Label,
    Policy,
    PredicateQuestion,
    Request,
    ScoreQuestion,
)
from dlm.decisions.running import Labels, RunningQuestion, reading_units
from dlm.events import End

INPUT = "Anna lives in Paris, and is aged 30. " * 3
QUESTIONS = [
    PredicateQuestion(name="city", instructions="Does Anna live in Paris?"),
    ScoreQuestion(instructions="How old?", levels=[Label("young"), Label("old", "over 60")]),
    *[
        ChoiceQuestion(
            instructions=f"Where {i}?", choices=[Label(f"Rome {i}"), Label("Rome"), Label("x")]
        )
        for i in range(4)
    ],
]
PERSON = JsonSchema({"type": "object", "properties": {"name": {"type": "string"}}})
REQUESTS = [
    Request(prompt="Extract name as JSON. This is Olga Lopez.", constraint=PERSON, max_tokens=24),
    Request(prompt=INPUT, max_tokens=20, seed=3, temperature=2.0),
    Request(prompt="Answer with one word of mage, healer.", constraint=Choice(["mage", "healer"])),
]
ALIKE = ChoiceQuestion(choices=[Label(f"mark {word}") for word in ("one", "two", "three")])


class Shut(Double):
    """Model with all mass on one token, which begins no label."""

    def wish(self, committed, canvas, soft_embedding):
        logits = torch.full((self.canvas_length, self.vocab_size), -torch.inf)
        logits[:, 300] = 0
        return logits


def decision(questions=QUESTIONS):
    return Decision(request=Request(prompt=INPUT, seed=4), questions=questions)


def of_tokens(questions):
    """Return a decision about a prompt of tokens, for doubles of the model."""
    return Decision(request=Request(token_ids=PROMPT, seed=4), questions=questions)


def ends_of(engine, steps=10_000):
    """Run an engine; return the ends by number, and the events of each step."""
    ends, events_of_steps = {}, []
    while engine.busy and len(events_of_steps) < steps:
        events_of_steps.append(engine.step())
        for event in events_of_steps[-1]:
            assert event.request not in ends
            if isinstance(event, End):
                ends[event.request] = event
    return ends, events_of_steps


@pytest.fixture(scope="module")
def alone():
    """The answer to each question of an engine without other questions."""
    engine = Engine.load(device="cpu", decoding="canvas")
    return [engine.decide(decision().request, [one])[0] for one in QUESTIONS]


BESIDE = [("canvas", 3), ("drafted", 3), ("canvas", 1), ("canvas", 8), ("drafted", 8)]


@pytest.mark.parametrize(("decoding", "slots"), by_default(BESIDE, 2))
def test_decisions_and_requests_do_not_change_each_other(alone, decoding, slots):
    """Answers are equal bit for bit, on the CPU in fp32, though passes and pages are shared."""
    engine = Engine.load(device="cpu", slots=slots, decoding=decoding)
    texts = [engine.generate(request).token_ids for request in REQUESTS]
    numbers = [engine.add(request) for request in REQUESTS[:2]]
    engine.step()
    decided = [engine.add(decision()), engine.add(decision(QUESTIONS[::-1]))]
    numbers.append(engine.add(REQUESTS[2]))
    ends, _ = ends_of(engine)
    assert [ends[number].result.token_ids for number in numbers] == texts
    assert ends[decided[0]].answers == alone
    assert ends[decided[1]].answers == alone[::-1]
    engine.close()


def test_a_decision_ends_once_with_all_of_its_answers_and_what_they_cost(built_in):
    number = built_in.add(decision())
    ends, steps = ends_of(built_in)
    assert [event for events in steps for event in events] == [ends[number]]
    (end,) = ends.values()
    assert isinstance(end, Decided)
    assert [answer.name for answer in end.answers] == [one.name for one in QUESTIONS]
    assert end.stats.denoiser_calls == end.stats.canvases == len(QUESTIONS)
    shared = len(built_in.chat.prompt(Request(prompt=INPUT))) // 16 * 16 - 16
    assert end.stats.cached >= (len(QUESTIONS) - 1) * shared
    assert end.stats.tokens == 0


def test_a_question_is_read_at_a_temperature_of_1_beside_canvases_of_others(engine_of):
    model = Fixed(V, 1)
    engine = engine_of(model, slots=4)
    engine.add(Request(token_ids=PROMPT))
    engine.step()
    number = engine.add(of_tokens([PredicateQuestion()]))
    ends, _ = ends_of(engine)
    (answer,) = ends[number].answers
    first = [engine.vocabulary.encode(word)[0] for word in ("yes", "no")]
    expected = model.logits.double().softmax(-1)[0, first].numpy()
    assert answer.mass == pytest.approx(expected.sum(), rel=1e-5)
    assert answer.probability == pytest.approx(expected[0] / expected.sum(), rel=1e-5)


def test_a_canvas_of_a_decision_needs_no_expected_embedding(engine_of):
    class Watched(Random):
        rows: list[int] = []  # noqa: RUF012

        def expected_embedding(self, distributions):
            parts = distributions.certain, distributions.listed, distributions.flat
            found = [row for part in parts for row in part.rows.tolist()]
            self.rows.append(len(found))
            return super().expected_embedding(distributions)

    model = Watched(V, 0)
    engine = engine_of(model, slots=3)
    several = of_tokens([PredicateQuestion()] * 6)
    engine.add(several)
    ends_of(engine)
    assert model.rows == []
    engine.add(Request(token_ids=PROMPT, max_tokens=16))
    engine.add(several)
    ends_of(engine)
    assert set(model.rows) == {16}


def test_cancelling_a_decision_drops_its_questions_wherever_they_are(engine_of):
    engine = engine_of(Random(V, 0), slots=3, policy=Policy(step_work=1))
    number = engine.add(of_tokens([ALIKE] * 9))
    other = engine.add(Request(token_ids=PROMPT))
    engine.step()
    running = engine._scheduler.running
    assert sorted(sequence.number for sequence in running.values()) == [number, number, other]
    assert engine.occupancy.waiting == 1  # the rest of the decision
    engine.cancel(number)
    assert [sequence.number for sequence in running.values()] == [other]
    assert engine.occupancy.waiting == 0
    ends, _ = ends_of(engine)
    assert list(ends) == [other]
    assert sorted(engine._scheduler._free) == [0, 1, 2]


def test_a_question_that_fails_ends_its_decision_alone(engine_of):
    engine = engine_of(Shut(V), slots=4)
    doomed = engine.add(of_tokens([PredicateQuestion(), PredicateQuestion()] * 9))
    fine = engine.add(Request(token_ids=PROMPT, max_tokens=16))
    ends, _ = ends_of(engine)
    assert isinstance(ends[doomed], Failed)
    assert str(ends[doomed].error).startswith("questions[0]: the model gives none of the labels")
    assert isinstance(ends[fine], Finished)
    assert sorted(engine._scheduler._free) == [0, 1, 2, 3]


def test_an_error_in_reading_a_canvas_ends_that_decision_alone(engine_of, monkeypatch):
    engine = engine_of(Random(V, 0), slots=4)
    whole = Labels.forward

    def broken(self, scores):
        raise OSError("broken")
        yield from whole(self, scores)

    monkeypatch.setattr(Labels, "forward", broken)
    doomed = engine.add(of_tokens([ALIKE]))
    fine = engine.add(of_tokens([PredicateQuestion()]))
    ends, _ = ends_of(engine)
    assert "OSError: broken" in str(ends[doomed].error)
    assert isinstance(ends[fine], Decided)


def test_requests_after_two_large_decisions_have_half_of_the_slots_at_once(engine_of):
    engine = engine_of(Random(V, 0), slots=4)
    free = Request(token_ids=PROMPT, max_tokens=48)
    large = [engine.add(of_tokens([ALIKE] * 50)) for _ in range(2)]
    later = [engine.add(free) for _ in range(3)]
    engine.step()
    running = [sequence.number for sequence in engine._scheduler.running.values()]
    assert [number for number in running if number in later] == later[:2]
    ends, steps = ends_of(engine)
    assert all(isinstance(ends[number], Decided) for number in large)
    order = [event.request for events in steps for event in events if isinstance(event, End)]
    assert order.index(later[0]) < order.index(large[0]) < order.index(large[1])


def test_without_requests_that_wait_a_decision_has_all_slots(engine_of):
    engine = engine_of(Random(V, 0), slots=4, policy=Policy(step_work=1))
    engine.add(of_tokens([ALIKE] * 9))
    engine.step()  # one question is summed in part
    assert len(engine._scheduler.running) == 4


@pytest.fixture
def counted(monkeypatch):
    """Units of work by kind and step: pieces of reading canvases, and pieces of sums of labels."""
    work = defaultdict(list)
    step, read, forward = Engine.step, RunningQuestion.read, Labels.forward
    steps = 0

    def stepping(self):
        nonlocal steps
        steps += 1
        return step(self)

    def reading(self, scores):
        work["read", steps].append(self.reading_units)
        read(self, scores)

    def summing(self, scores):
        for found in forward(self, scores):
            work["sum", steps].append(self.work)
            yield found

    monkeypatch.setattr(Engine, "step", stepping)
    monkeypatch.setattr(RunningQuestion, "read", reading)
    monkeypatch.setattr(Labels, "forward", summing)
    return work


def test_a_step_does_its_share_of_a_large_decision_and_no_more(engine_of, counted, monkeypatch):
    """There are 60 questions of 255 long labels each, made costlier to read than they are."""
    monkeypatch.setattr("dlm.decisions.running._NUMBERS", 64)
    model, work = Random(V, 0, canvas_length=32), 40
    engine = engine_of(model, slots=6, policy=Policy(step_work=work))
    values = [f"mark {7919 * i % 9973:04} of {104729 * i % 9967:04}, {i} red" for i in range(255)]
    large = ChoiceQuestion(choices=[Label(value) for value in values])
    labels = Labels(values, engine.vocabulary)
    assert 6 * reading_units(labels) > work > labels.work
    number = engine.add(of_tokens([large] * 60))
    ends, _ = ends_of(engine)
    assert len(ends[number].answers) == 60
    sums = sum(sum(pieces) for (kind, _), pieces in counted.items() if kind == "sum")
    assert sums == 60 * labels.work * labels.length
    for (kind, _), pieces in counted.items():
        assert sum(pieces) <= work + (pieces[-1] - 1 if kind == "sum" else 0)


def test_requests_that_run_go_on_in_each_step_while_labels_are_summed(engine_of, counted):
    """The request's canvas is denoised at each step, however many labels there are."""
    engine = engine_of(Random(V, 0), slots=3, policy=Policy(step_work=1))
    beside = engine.add(Request(token_ids=PROMPT, max_tokens=96))
    engine.step()
    number = engine.add(of_tokens([ALIKE] * 20))
    ends, steps = ends_of(engine)
    until = next(i for i, events in enumerate(steps) if ends[beside] in events)
    drafts = [any(isinstance(e, Draft) and e.request == beside for e in events) for events in steps]
    assert all(drafts[: until + 1])
    assert until > 20
    assert isinstance(ends[number], Decided)
    assert all(len(pieces) == 1 for pieces in counted.values())


def test_pieces_of_work_of_any_size_have_the_same_answers(engine_of):
    answers = []
    for work in (1, 2, 2000):
        engine = engine_of(Fixed(V, 1), policy=Policy(step_work=work))
        answers.append(engine.decide(Request(token_ids=PROMPT), [ALIKE, PredicateQuestion()] * 7))
    assert answers[0] == answers[1] == answers[2]
    assert not np.isnan(answers[0][0].mass)
