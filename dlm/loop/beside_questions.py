"""Decoding of texts left to right beside questions that canvases answer.

A step runs two passes then: one for the texts, and one over the canvases of questions. Neither
decoder sees the requests of the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dlm.events import Event
from dlm.grammar import Compiled, Reasoning
from dlm.loop.decoding import Decoder, EngineContext
from dlm.loop.pass_plan import PassPlan
from dlm.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PlanWithQuestions(PassPlan):
    """Plan of a step: the pass of the texts, and a second one for the questions."""

    deciding: PassPlan = field(default_factory=PassPlan)

    def __bool__(self) -> bool:
        return bool(self.runs or self.errors or self.deciding)


def _deciding(plan: PassPlan) -> PassPlan:
    return plan.deciding if isinstance(plan, PlanWithQuestions) else PassPlan()


class BesideQuestions(Decoder):
    """Decoder that leaves texts to one decoder, and questions to another."""

    decides = True

    def __init__(self, context: EngineContext, texts: Decoder, questions: Decoder):
        super().__init__(context)
        self._texts, self._questions = texts, questions

    def _of(self, sequence: Sequence) -> Decoder:
        return self._texts if sequence.question is None else self._questions

    def constrain(
        self, sequence: Sequence, compiled: Compiled | None, reasoning: Reasoning | None
    ) -> None:
        self._of(sequence).constrain(sequence, compiled, reasoning)

    def plan(self, running: Mapping[int, Sequence]) -> PassPlan:
        asking = {slot: s for slot, s in running.items() if s.question is not None}
        texts = self._texts.plan({slot: s for slot, s in running.items() if slot not in asking})
        deciding = self._questions.plan(asking) if asking else PassPlan()
        return PlanWithQuestions(
            texts.encode, texts.canvases, texts.questions, texts.errors, texts.seconds, deciding
        )

    def run(self, plan: PassPlan) -> Any:
        deciding = self._questions.run(_deciding(plan))
        return self._texts.run(plan), deciding, plan.canvases.keys()

    def guide(self, output: Any) -> Any:
        texts, questions, _ = output
        return self._texts.guide(texts), self._questions.guide(questions)

    def settle(self, plan: PassPlan, output: Any, guidance: Any) -> dict[int, Any]:
        outcomes = self._texts.settle(plan, output[0], guidance[0])
        return outcomes | self._questions.settle(_deciding(plan), output[1], guidance[1])

    def draft(
        self,
        output: Any,
        outcomes: Mapping[int, Any],
        running: Mapping[int, Sequence],
        events: list[Event],
    ) -> dict[int, Exception]:
        texts, _, slots = output
        written = {slot: outcome for slot, outcome in outcomes.items() if slot in slots}
        return self._texts.draft(texts, written, running, events)

    def _start(self, sequence: Sequence) -> None:
        self._of(sequence)._start(sequence)

    def commit(self, sequence: Sequence, outcome: Any, events: list[Event]) -> None:
        self._of(sequence).commit(sequence, outcome, events)

    def _go_back(self, slot: int, sequence: Sequence, at: int) -> None:
        self._of(sequence)._go_back(slot, sequence, at)
