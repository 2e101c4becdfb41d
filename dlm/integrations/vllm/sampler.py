"""Worker of vLLM: its sampler for diffusion, on logits that are rewritten by the grammars.

`Slots` holds the constraints of a worker's requests, by vLLM's slots, and knows no tensor of
vLLM's. A request's canvas is denoised, converges, and is committed in the pass after that. vLLM
accepts, noises again and converges on its own; before that, `ConstrainedSampler` rewrites its
logits (`LogitsGuide`), and constraints follow what it commits. A step with constraints waits for
the device twice: for the state of the canvases, and for what was read of their logits.

Nothing here may raise, since that would end the engine. A request that fails is given a canvas that
the scheduler takes for an error. A canvas whose constraint needs another step's work is put back as
it was: the same pass shows it the same logits again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
from torch import Tensor

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
from dlm.integrations.vllm.admission import reasoning_of
from dlm.integrations.vllm.needs import MOVED
from dlm.integrations.vllm.payload import Payload
from dlm.kernels.pinned import PinnedMemory
from dlm.logits.canvas_logits import DeviceCopies
from dlm.logits.guided import GuidedCanvas, name_rows_
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

    def __init__(self, compiler: Compiler, policy: Policy, config: DecodeConfig):
        """`config` says when a canvas is stuck."""
        self.policy, self.config, self._compiler = policy, config, compiler
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
            if payload.thinking:
                slot.reasoning = reasoning_of(
                    self._vocabulary, self.policy, budget, payload.thinking_budget
                )
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


@dataclass(frozen=True, slots=True)
class ConstrainedCanvas:
    """A constrained request's rows in a step."""

    index: int  # of vLLM's slot
    slot: Slot
    first: int
    length: int


def _by_slot(states: Any) -> dict[str, Tensor]:
    """Return the tensors of vLLM's states that have a row for each slot, by their names."""
    count = states.canvas.shape[0]
    return {
        name: value
        for name, value in vars(states).items()
        if isinstance(value, Tensor) and value.dim() and value.shape[0] == count
    }


class ConstrainedSampler:
    """Stands where vLLM's sampler stood; without constraints in a batch it does nothing."""

    def __init__(self, inner: Any, states: Any, slots: Slots, guide: Any):
        """`states` are vLLM's per-request tensors of diffusion, and `guide` is a `LogitsGuide`.
        Raises `DlmError` if one of the tensors that a step moves has no such name."""
        self._inner, self._states, self._slots, self._guide = inner, states, slots, guide
        self._link: DeviceCopies | None = None  # made at the first step
        self.moved = _by_slot(states)  # what a step may move, to put it back
        missing = [name for name in (*MOVED, "max_steps") if name not in self.moved]
        draft_tokens = getattr(inner.req_states, "draft_tokens", None)
        if missing or not isinstance(draft_tokens, Tensor):
            names = ", ".join(missing) or "draft_tokens"
            raise DlmError(f"vLLM's states of requests have no tensor {names}")
        self.moved["draft_tokens"] = draft_tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, logits: Tensor, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        canvases = self._constrained(input_batch)
        waiting: list[int] = []
        if canvases:
            try:
                waiting = self._prepare(logits, canvases)
            except Exception as error:
                for canvas in canvases:
                    canvas.slot.fail(error)
                self._give_up(logits, canvases)
        if not waiting:
            return self._inner(logits, input_batch, *args, **kwargs)
        (where,) = self._copies(logits.device).to_device(torch.tensor(waiting))
        places = list(self.moved.values())
        before = [place[where].clone() for place in places]
        output = self._inner(logits, input_batch, *args, **kwargs)
        for place, value in zip(places, before, strict=True):
            place[where] = value
        return output

    @property
    def copies(self) -> int:
        """Number of copies between host and device so far, without those of the guide."""
        return 0 if self._link is None else self._link.count

    def _copies(self, device: torch.device) -> DeviceCopies:
        if self._link is None:
            self._link = DeviceCopies(device, PinnedMemory())
        return self._link

    def _constrained(self, input_batch: Any) -> list[ConstrainedCanvas]:
        if input_batch.num_draft_tokens == 0 or not len(self._slots):
            return []
        n = input_batch.num_reqs
        indices = input_batch.idx_mapping_np[:n].tolist()
        starts = input_batch.cu_num_logits_np[: n + 1].tolist()
        return [
            ConstrainedCanvas(index, slot, start, end - start)
            for index, start, end in zip(indices, starts, starts[1:], strict=False)
            if end > start and (slot := self._slots.get(index)) is not None
        ]

    def _prepare(self, logits: Tensor, canvases: Sequence[ConstrainedCanvas]) -> list[int]:
        """Commit what was taken, rewrite the other rows; return the slots whose canvas waits."""
        states = self._states
        indices = torch.tensor([canvas.index for canvas in canvases])
        copies = self._copies(logits.device)
        (where,) = copies.to_device(indices)
        columns = [states.is_encoder_phase, states.step, states.max_steps]
        numbers = torch.stack([column[where].long() for column in columns], dim=1)
        packed = torch.cat((numbers, states.argmax_canvas[where]), dim=1)
        rows = copies.to_host(packed).tolist()
        denoised: list[tuple[ConstrainedCanvas, bool]] = []
        failed: list[ConstrainedCanvas] = []
        for canvas, (committing, step, most, *tokens) in zip(canvases, rows, strict=True):
            if canvas.slot.error is not None:
                failed.append(canvas)
            elif not committing:
                denoised.append((canvas, step + 1 >= most))
            else:
                try:
                    canvas.slot.commit(tokens[: canvas.length])
                    if canvas.slot.mark is not None:
                        position, token = canvas.slot.mark
                        states.argmax_canvas[canvas.index, position] = token
                except Exception as error:
                    canvas.slot.fail(error)
                    failed.append(canvas)
        readings = self._guide.guide_(
            logits,
            [
                GuidedCanvas(
                    constraint=canvas.slot,
                    first=canvas.first,
                    length=canvas.length,
                    fixed=canvas.slot.fixed(last),
                    cut=canvas.slot.cut,
                )
                for canvas, last in denoised
            ],
        )
        waiting = []
        for (canvas, _), reading in zip(denoised, readings, strict=True):
            if isinstance(reading, Unfinished):
                waiting.append(canvas.index)
            elif isinstance(reading, Exception):
                canvas.slot.fail(reading)
                failed.append(canvas)
            else:
                canvas.slot.note(reading, self._slots.config)
        self._give_up(logits, failed)
        return waiting

    def _give_up(self, logits: Tensor, canvases: Sequence[ConstrainedCanvas]) -> None:
        """Have canvases of failed requests converge now, on what the scheduler takes for an error;
        one that is committed in this step says so at once."""
        try:
            for canvas in canvases:
                token = canvas.slot.payload.failed
                rows = torch.arange(
                    canvas.first, canvas.first + canvas.length, device=logits.device
                )
                name_rows_(logits, rows, torch.full_like(rows, token))
                self._states.argmax_canvas[canvas.index] = token
                self._states.max_steps[canvas.index] = 0
        except Exception as error:
            failure(error)
