"""Constraint of one request in SGLang: its grammar, bound to the request, within its budget.

SGLang keeps one such object for each constraint and copies it for each request. A copy is bound
when SGLang takes the request in, and makes its constraint in the first step that queries it. The
constraint follows the tokens that SGLang has taken, so a request may be taken back and begun anew.
Knows no class of SGLang's; requests are known by a few attributes.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from dlm.errors import DlmError, failure
from dlm.grammar import (
    NOTHING,
    Compiled,
    Fixed,
    Frontier,
    Guidance,
    LimitError,
    Reasoning,
    Scores,
    Unfinished,
)
from dlm.integrations.unmasking import Corrections
from dlm.policy import Policy


class RequestGrammar:
    """A compiled constraint; after `bind`, that of one request."""

    def __init__(self, compiled: Compiled, policy: Policy, reasoning: Reasoning | None):
        """`reasoning` has the markers of the model; None: it has none."""
        self._compiled, self._policy, self._markers = compiled, policy, reasoning
        self._reasoning: Reasoning | None = None
        self._constraint: Frontier | None = None
        self._output: Callable[[], Sequence[int]] | None = None
        self._prompt = 0  # tokens
        self._followed = 0  # tokens of the output that the constraint has moved past
        self._budget = 0
        self._unfinished = 0  # units of a query that has not finished
        self._total = 0  # units of all queries
        self.work = 0  # units that the next query may take
        self.spent = 0  # units that the last query took
        self.corrections = Corrections()  # of a sampler that unmasks
        self.error: DlmError | None = None  # why the request failed

    @property
    def stops(self) -> Sequence[int]:
        """The tokens that end an answer."""
        return self._compiled.vocabulary.stops

    def copied(self) -> "RequestGrammar":
        """Return the same constraint, bound to no request."""
        return type(self)(self._compiled, self._policy, self._markers)

    @property
    def bound(self) -> bool:
        return self._output is not None

    def bind(
        self,
        prompt: int,
        output: Callable[[], Sequence[int]],
        budget: int,
        thinks: bool = False,
        thinking_budget: int | None = None,
    ) -> None:
        """Bind this object to a request of `prompt` tokens, whose answer so far `output` returns.

        `budget` bounds all of them, the stop included. If it `thinks`, the answer comes after a
        reasoning that the prompt has opened, of `thinking_budget` tokens at most. Raises
        `BudgetError` if no answer fits.
        """
        self._prompt, self._output, self._budget = prompt, output, budget
        if thinks and self._markers is not None:
            reserve = self._policy.reserve(budget)
            self._reasoning = replace(
                self._markers, opened=True, budget=thinking_budget, reserve=reserve
            )
        self._check_budget()

    def _check_budget(self) -> None:
        """Raise `BudgetError` if no answer fits. If that takes too much work, the first step goes
        on with it."""
        with suppress(Unfinished):
            self._constraint = self._made(self._policy.step_work)

    def _made(self, work: int) -> Frontier:
        return Frontier(self._compiled, self._budget, self._reasoning, work)

    @property
    def position(self) -> int:
        """Number of tokens of the prompt and of the answer so far."""
        return self._prompt + len(self._written())

    def _written(self) -> Sequence[int]:
        if self._output is None:
            raise DlmError("a constraint is queried before its request is taken in")
        return self._output()

    def follow(self) -> Frontier:
        """Return the constraint, moved past all tokens that SGLang has taken. Raises `GrammarError`
        for tokens that are not allowed, and `Unfinished`."""
        output, stops = list(self._written()), self._compiled.vocabulary.stops
        if self._constraint is None:  # what it takes is not resumed, so that a share is too little
            self._constraint = self._made(max(self.work, self._policy.step_work))
        constraint = self._constraint
        if len(output) < self._followed:
            constraint.rollback(self._followed - len(output))
            self._followed = len(output)
        new = output[self._followed :]
        end = next((i + 1 for i, token in enumerate(new) if token in stops), len(new))
        if end:
            constraint.commit(new[:end])
            self._followed += end
        return constraint

    def guide(self, scores: Scores, fixed: Fixed = NOTHING) -> Guidance:
        """Return the guidance for a step, as `Constraint.guide` does. Raises `LimitError` if one
        query takes too much work, and `DlmError` if all queries of the answer do."""
        try:
            constraint = self.follow()
            constraint.work = self.work
            guidance = constraint.guide(scores, fixed)
        except Unfinished as error:
            self._unfinished += self.work
            limit = self._policy.max_unfinished_steps * self._policy.step_work
            if self._unfinished > limit:
                raise LimitError(f"the grammar takes over {limit} units of work") from error
            raise
        finally:
            self.spent = self.work if self._constraint is None else self._constraint.spent
            self._total += self.spent
        self._unfinished = 0
        self._policy.check_answer_work(self._total, self._budget)
        return guidance

    def commit(self, tokens: Sequence[int]) -> None:
        """Do nothing: `follow` moves the constraint."""

    def rollback(self, count: int) -> None:
        """Do nothing: `follow` moves the constraint."""

    def fail(self, error: Exception) -> DlmError:
        """Remember why the request cannot go on; a bug is logged."""
        self.error = self.error or failure(error)
        return self.error

    def check(self) -> DlmError | None:
        """Move past the tokens that SGLang has taken. Returns why the request failed, or None."""
        if self.error is None:
            try:
                with suppress(Unfinished):  # the next step goes on with it
                    self.follow()
            except Exception as error:
                self.fail(error)
        return self.error

    @property
    def squeezed(self) -> bool:
        """Whether the budget took a token of the answer from the model."""
        return self._constraint is not None and self._constraint.squeezed
