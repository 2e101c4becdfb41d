"""Constraints of a worker's requests, by vLLM's slots. Knows no tensor of vLLM's.

Nothing of a request may raise into vLLM, since that would end the engine: a slot remembers why its
request failed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from dlm.canvas import Progress
from dlm.config import DecodeConfig
from dlm.errors import DlmError, failure
from dlm.grammar import (
    NOTHING,
    Compiled,
    Compiler,
    Fixed,
    Frontier,
    Guidance,
    LimitError,
    Reasoning,
    Scores,
    Unfinished,
)
from dlm.integrations.unmasking import Corrections
from dlm.integrations.vllm.admission import reasoning_of
from dlm.integrations.vllm.payload import Payload
from dlm.logits.sampling import Cut
from dlm.policy import Policy
from dlm.request import Stats


@dataclass(slots=True)
class Slot:
    """One request's constraint, made within a step's work when it is first queried.

    An exception of the constraint fails the request, except `Unfinished`: then the canvas waits.
    """

    payload: Payload
    budget: int  # tokens of the whole answer, the stop among them
    stops: frozenset[int]
    most_work: int  # units of one look, in all steps that it takes
    policy: Policy  # bounds the work of all looks together
    compiled: Compiled | None = None
    reasoning: Reasoning | None = None
    name: str = ""
    written: list[int] = field(default_factory=list)  # tokens of the answer before a preemption
    error: DlmError | None = None  # why the request failed
    ended: bool = False  # its stop token is committed
    squeezed: bool = False  # its budget took a token of the committed text from the model
    mark: tuple[int, int] | None = None  # position of its stop, and the token that says so there
    work: int = 0  # units that the next look may take
    spent: int = 0  # units that the last finished look took
    total: int = 0  # units that all looks took, before a preemption too
    corrections: Corrections = field(default_factory=Corrections)  # of a sampler that unmasks
    _constraint: Frontier | None = None
    _unfinished: int = 0  # units of a look that has not finished
    _progress: Progress = field(default_factory=lambda: Progress(stats=Stats()))

    def guide(self, scores: Scores, fixed: Fixed = NOTHING) -> Guidance:
        try:
            constraint = self._made()
            constraint.work = self.work
            guidance = constraint.guide(scores, fixed)
            self.spent = constraint.spent
        except Unfinished as error:
            self._unfinished += self.work
            self._count(self.work)
            if self._unfinished <= self.most_work:
                raise
            raise LimitError(
                f"the grammar takes over {self.most_work} units of work to match a canvas"
            ) from error
        self._count(self.spent)
        self._unfinished = 0
        return guidance

    def _count(self, work: int) -> None:
        """Count work of the grammar. Raises `DlmError` if it is too much for one answer."""
        self.total += work
        self.policy.check_answer_work(self.total, self.budget)

    def fixed(self, last: bool) -> Fixed:
        """Return what the next pass may not change; `last`: it is the canvas's last."""
        banned = {} if last else self._progress.banned
        return Fixed(pinned=self._progress.pinned, banned=banned, last=last)

    def note(self, guidance: Guidance, config: DecodeConfig) -> None:
        """Count a pass over the canvas: what is stuck is pinned, or taken back, as in our engine.
        When it is settled is vLLM's to say."""
        self._progress.settle(guidance, inf, config)

    def commit(self, tokens: Sequence[int]) -> None:
        """Move past a canvas of tokens, up to its stop."""
        end = next((at for at, token in enumerate(tokens, 1) if token in self.stops), None)
        constraint = self._made()
        constraint.commit(tokens[:end])
        self._progress = Progress(stats=Stats())
        self.squeezed |= constraint.squeezed
        self.ended = end is not None
        if end is not None and self.squeezed:
            token = self.payload.squeezed[self.payload.stops.index(tokens[end - 1])]
            self.mark = end - 1, token

    def rollback(self, count: int) -> None:
        self._made().rollback(count)

    def fail(self, error: Exception) -> None:
        """Remember why it cannot go on; a bug is logged."""
        self.error = self.error or failure(error)

    @property
    def cut(self) -> Cut | None:
        """The request's top-k and top-p."""
        cut = Cut(temperature=1.0, top_k=self.payload.top_k, top_p=self.payload.top_p)
        return None if (cut.top_k, cut.top_p) == (0, 1.0) else cut

    def _made(self) -> Frontier:
        if self._constraint is None:
            if self.compiled is None:
                raise DlmError("a constraint without a grammar")
            made = Frontier(self.compiled, self.budget, self.reasoning, self.work)
            if self.written:
                made.commit(self.written)
            self._constraint = made
        return self._constraint


_MOST_REMEMBERED = 1024  # preempted requests; aborted ones are among them


class Slots:
    """Constraints of one worker's requests, and the grammars that it knows."""

    def __init__(self, compiler: Compiler, policy: Policy):
        self.policy, self._compiler = policy, compiler
        self._vocabulary = compiler.vocabulary
        self._slots: dict[int, Slot] = {}
        # Of the last requests that were removed, by name: `squeezed` and `total` of their slots.
        self._removed: dict[str, tuple[bool, int]] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, index: int) -> Slot | None:
        """The constraint of the request in a slot; None: its text is free, or has ended."""
        slot = self._slots.get(index)
        return None if slot is None or slot.ended else slot

    def add(
        self, index: int, payload: Payload, budget: int, written: Sequence[int], name: str = ""
    ) -> None:
        """Take a request in; `written` are the tokens of its answer, if it was preempted. By its
        `name` it is known again then.

        Raises nothing: a request that cannot be served fails in its first step.
        """
        squeezed, total = self._removed.get(name, (False, 0))
        slot = Slot(
            payload,
            budget,
            stops=frozenset(self._vocabulary.stops),
            most_work=self.policy.max_unfinished_steps * self.policy.step_work,
            policy=self.policy,
            written=list(written),
            name=name,
            squeezed=squeezed,
            total=total,
        )
        self._slots[index] = slot
        try:
            slot.compiled = self._compiler.unpack(payload.rules)
            slot.reasoning = reasoning_of(self._vocabulary, self.policy, budget, payload)
        except Exception as error:
            slot.fail(error)

    def remove(self, index: int) -> None:
        """Drop the constraint of a slot, if it has one. It may come back after a preemption."""
        slot = self._slots.pop(index, None)
        if slot is None:
            return
        self._removed.pop(slot.name, None)
        if slot.name and not slot.ended:
            self._removed[slot.name] = slot.squeezed, slot.total
            if len(self._removed) > _MOST_REMEMBERED:
                del self._removed[next(iter(self._removed))]
