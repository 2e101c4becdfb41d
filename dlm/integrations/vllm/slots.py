"""The constraints of the requests that a worker holds, by vLLM's slots.

Knows grammars and rows of logits; no tensor of vLLM's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

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
from dlm.integrations.vllm.admission import Payload
from dlm.logits.sampling import Cut
from dlm.policy import Policy
from dlm.request import Stats
from dlm.sequence import Progress


@dataclass(slots=True)
class Slot:
    """One request's constraint, made within a step's work when it is first queried.

    An exception of the constraint fails the request, except `Unfinished`: then the canvas is held.
    """

    payload: Payload
    budget: int  # tokens of the whole answer, the stop among them
    stops: frozenset[int]
    looks: int  # steps in a row that may be `Unfinished`
    compiled: Compiled | None = None
    reasoning: Reasoning | None = None
    written: list[int] = field(default_factory=list)  # tokens of the answer before a preemption
    error: DlmError | None = None  # why the request failed
    ended: bool = False  # its stop token is committed
    work: int = 0  # units that the next look may take
    _constraint: Frontier | None = None
    _unfinished: int = 0
    _progress: Progress = field(default_factory=lambda: Progress(stats=Stats()))

    def guide(self, scores: Scores, fixed: Fixed = NOTHING) -> Guidance:
        try:
            constraint = self._made()
            constraint.work = self.work
            read = constraint.guide(scores, fixed)
        except Unfinished as error:
            self._unfinished += 1
            if self._unfinished < self.looks:
                raise
            raise LimitError("the constraint takes too much work") from error
        self._unfinished = 0
        return read

    def fixed(self, last: bool) -> Fixed:
        """Return what the next pass may not change; `last`: it is the canvas's last."""
        banned = {} if last else self._progress.banned
        return Fixed(pinned=self._progress.pinned, banned=banned, last=last)

    def note(self, read: Guidance, config: DecodeConfig) -> None:
        """Count a pass over the canvas: what is stuck is pinned, or taken back, as in our engine.
        When it is settled is vLLM's to say."""
        self._progress.settle(read, inf, config)

    def commit(self, tokens: Sequence[int]) -> None:
        """Move past a canvas of tokens, up to its stop."""
        end = next((at for at, token in enumerate(tokens, 1) if token in self.stops), None)
        self._made().commit(tokens[:end])
        self._progress = Progress(stats=Stats())
        self.ended = end is not None

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


class Slots:
    """Constraints of one worker's requests, and the grammars that it knows."""

    def __init__(self, compiler: Compiler, policy: Policy, config: DecodeConfig):
        """`config` says when a canvas is stuck."""
        self.policy, self.config, self._compiler = policy, config, compiler
        self._vocabulary = compiler.vocabulary
        self._slots: dict[int, Slot] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, index: int) -> Slot | None:
        """The constraint of the request in a slot; None: its text is free, or has ended."""
        slot = self._slots.get(index)
        return None if slot is None or slot.ended else slot

    def add(self, index: int, payload: Payload, budget: int, written: Sequence[int]) -> None:
        """Take a request in; `written` are the tokens of its answer, if it was preempted.

        Raises nothing: a request that cannot be served fails in its first step.
        """
        slot = Slot(
            payload,
            budget,
            stops=frozenset(self._vocabulary.stops),
            looks=self.policy.looks,
            written=list(written),
        )
        self._slots[index] = slot
        try:
            slot.compiled = self._compiler.unpack(payload.rules)
            if payload.thinking:
                slot.reasoning = Reasoning.of(self._vocabulary, payload.thinking_budget)
        except Exception as error:
            slot.fail(error)

    def remove(self, index: int) -> None:
        """Drop the constraint of a slot, if it has one."""
        self._slots.pop(index, None)
