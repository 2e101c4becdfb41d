"""Constraints of waiting requests, which are made when their grammars are compiled. Knows no slot
and no pass."""

from contextlib import suppress
from dataclasses import replace

from dlm.errors import RequestError, failure
from dlm.grammar import BudgetError, Compiled, CrashError, GrammarError, Unfinished
from dlm.loop.decoding import Decoder
from dlm.policy import Policy
from dlm.scheduler import Waiting
from dlm.sequence import Sequence


class ConstraintBuilder:
    """Maker of the constraints of requests, as their decoder needs them."""

    def __init__(self, decoder: Decoder, policy: Policy):
        self._decoder, self._policy = decoder, policy

    def build(self, waiting: Waiting) -> None:
        """Give a request its constraint, unless it has it; waits for its grammar. Raises
        `Unfinished` if that takes more than a step's work: it is to be called again. Raises
        `DlmError` if the request can never run."""
        if waiting.built:
            return
        try:
            compiled = None if waiting.compiling is None else waiting.compiling.result()
            for sequence in waiting.sequences:
                self._constrain(sequence, compiled)
            waiting.built = True
        except Unfinished:
            raise
        except BudgetError as error:
            max_tokens = waiting.sequences[0].request.max_tokens
            message = f"max_tokens is {max_tokens}: {error}"
            raise RequestError(message, field="max_tokens") from error
        except CrashError as error:
            raise failure(error) from error
        except GrammarError as error:
            raise RequestError(str(error)) from error
        except Exception as error:
            raise failure(error) from error

    def finish(self, waiting: Waiting) -> None:
        """Give a request its constraint, whatever work that takes. Raises `DlmError` if it can
        never run."""
        while not waiting.built:
            with suppress(Unfinished):  # repeated until it is finished
                self.build(waiting)

    def _constrain(self, sequence: Sequence, compiled: Compiled | None) -> None:
        """Give a sequence its constraint; a question has none."""
        if sequence.question is not None:
            return
        request, reasoning = sequence.request, sequence.stream.reasoning
        if reasoning is not None and request.thinking:
            budget, reserve = request.thinking_budget, self._policy.reserve(request.max_tokens)
            reasoning = replace(reasoning, budget=budget, reserve=reserve)
        try:
            self._decoder.constrain(sequence, compiled, reasoning)
        except Unfinished:
            sequence.grammar_work += self._policy.step_work
            self._decoder.check_work(sequence)
            raise
        sequence.checked = compiled is not None and compiled.checked
