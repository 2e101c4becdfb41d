"""Decoding of texts left to right beside questions that canvases answer.

A step runs two passes then: one for the texts, and one over the canvases of questions. Neither
decoder sees the requests of the other.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dlm.events import Event
from dlm.grammar import Compiled, Reasoning
from dlm.loop.decoding import Decoder, EngineContext
from dlm.loop.pass_plan import PassPlan
from dlm.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PlanWithQuestions(PassPlan):
    """Plan of a step: the pass of the texts, and a second one for the questions."""

    question_pass: PassPlan = field(default_factory=PassPlan)

    def __bool__(self) -> bool:
        return bool(self.runs or self.errors or self.question_pass)


class OutputWithQuestions(NamedTuple):
    """Outputs of the two passes of a step."""

    texts: Any
    questions: Any
    text_slots: Container[int]  # slots of the canvases in the pass of the texts


class GuidanceWithQuestions(NamedTuple):
    """Guidance of the two passes of a step."""

    texts: Any
    questions: Any


def _question_pass(plan: PassPlan) -> PassPlan:
    return plan.question_pass if isinstance(plan, PlanWithQuestions) else PassPlan()


class BesideQuestions(Decoder):
    """Decoder that leaves texts to one decoder, and questions to another."""

    decides = True

    def __init__(self, context: EngineContext, texts: Decoder, questions: Decoder):
        super().__init__(context)
        self._texts, self._questions = texts, questions

    def _decoder_of(self, sequence: Sequence) -> Decoder:
        return self._texts if sequence.question is None else self._questions

    def constrain(
        self, sequence: Sequence, compiled: Compiled | None, reasoning: Reasoning | None
    ) -> None:
        self._decoder_of(sequence).constrain(sequence, compiled, reasoning)

    def plan(self, running: Mapping[int, Sequence]) -> PassPlan:
        questions = {slot: s for slot, s in running.items() if s.question is not None}
        texts = self._texts.plan({slot: s for slot, s in running.items() if slot not in questions})
        second = self._questions.plan(questions) if questions else PassPlan()
        return PlanWithQuestions(
            texts.encode, texts.canvases, texts.questions, texts.errors, texts.seconds, second
        )

    def run(self, plan: PassPlan) -> OutputWithQuestions:
        questions = self._questions.run(_question_pass(plan))
        return OutputWithQuestions(self._texts.run(plan), questions, plan.canvases.keys())

    def guide(self, output: OutputWithQuestions) -> GuidanceWithQuestions:
        texts = self._texts.guide(output.texts)
        return GuidanceWithQuestions(texts, self._questions.guide(output.questions))

    def settle(
        self, plan: PassPlan, output: OutputWithQuestions, guidance: GuidanceWithQuestions
    ) -> dict[int, Any]:
        texts = self._texts.settle(plan, output.texts, guidance.texts)
        second = _question_pass(plan)
        return texts | self._questions.settle(second, output.questions, guidance.questions)

    def draft(
        self,
        output: OutputWithQuestions,
        outcomes: Mapping[int, Any],
        running: Mapping[int, Sequence],
        events: list[Event],
    ) -> dict[int, Exception]:
        texts = {slot: o for slot, o in outcomes.items() if slot in output.text_slots}
        return self._texts.draft(output.texts, texts, running, events)

    def _start(self, sequence: Sequence) -> None:
        self._decoder_of(sequence)._start(sequence)

    def commit(self, sequence: Sequence, outcome: Any, events: list[Event]) -> None:
        self._decoder_of(sequence).commit(sequence, outcome, events)

    def _go_back(self, slot: int, sequence: Sequence, at: int) -> None:
        self._decoder_of(sequence)._go_back(slot, sequence, at)
