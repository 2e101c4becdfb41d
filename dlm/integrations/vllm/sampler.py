"""Worker of vLLM: its sampler for diffusion, on logits that are rewritten by the grammars.

A request's canvas is denoised, converges, and is committed in the pass after that. vLLM decides
what is sure, and when a canvas converges; before that, `ConstrainedSampler` rewrites its logits
(`LogitsGuide`), and constraints follow what it commits. What differs between canvases of noise and
of masks is in `noise` and `masked`.

Nothing here may raise, since that would end the engine. A request that fails is given a canvas that
the scheduler takes for an error. A canvas whose constraint needs another step's work is put back as
it was: the same pass shows it the same logits again.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from dlm.errors import DlmError, failure
from dlm.grammar import Guidance, Unfinished
from dlm.integrations.vllm.slots import Slot, Slots
from dlm.kernels.pinned import PinnedMemory
from dlm.logits.canvas_logits import DeviceCopies
from dlm.logits.guided import GuidedCanvas


@dataclass(frozen=True, slots=True)
class ConstrainedCanvas:
    """A constrained request's rows in a step."""

    index: int  # of vLLM's slot
    slot: Slot
    first: int
    length: int


@dataclass(frozen=True, slots=True)
class Denoised:
    """A constrained canvas that is denoised in a step, as it is before that."""

    canvas: ConstrainedCanvas
    tokens: list[int]  # of the whole canvas, as `_columns` reads them
    last: bool  # vLLM commits the canvas after this pass


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

    tensors: ClassVar[tuple[str, ...]] = ()  # of vLLM's states, with a row for each slot

    def __init__(self, inner: Any, states: Any, slots: Slots, guide: Any):
        """`states` are vLLM's per-request tensors of diffusion, and `guide` is a `LogitsGuide`.
        Raises `DlmError` if one of the tensors that a step moves has no such name."""
        self._inner, self.states, self._slots, self._guide = inner, states, slots, guide
        self._link: DeviceCopies | None = None  # made at the first step
        self.moved = _by_slot(states)  # what a step may move, to put it back
        missing = [name for name in self.tensors if name not in self.moved]
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
        guided: list[tuple[Denoised, Guidance]] = []
        if canvases:
            try:
                waiting, guided = self._prepare(logits, canvases)
            except Exception as error:
                self._fail(canvases, error)
                self._give_up(logits, canvases)
        if not waiting:
            output = self._inner(logits, input_batch, *args, **kwargs)
        else:
            (where,) = self._copies(logits.device).to_device(torch.tensor(waiting))
            places = list(self.moved.values())
            before = [place[where].clone() for place in places]
            output = self._inner(logits, input_batch, *args, **kwargs)
            for place, value in zip(places, before, strict=True):
                place[where] = value
        if guided:
            try:
                self._correct(guided)
            except Exception as error:
                self._fail([denoised.canvas for denoised, _ in guided], error)
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

    def _prepare(
        self, logits: Tensor, canvases: Sequence[ConstrainedCanvas]
    ) -> tuple[list[int], list[tuple[Denoised, Guidance]]]:
        """Commit what was taken, rewrite the other rows; return the slots whose canvas waits, and
        the guidance of those that go on."""
        going_on, failed = self._committed(logits.device, canvases)
        readings = self._guide.guide_(logits, [self._canvas(denoised) for denoised in going_on])
        waiting, guided = [], []
        for denoised, reading in zip(going_on, readings, strict=True):
            canvas = denoised.canvas
            if isinstance(reading, Unfinished):
                waiting.append(canvas.index)
            elif isinstance(reading, Exception):
                canvas.slot.fail(reading)
                failed.append(canvas)
            else:
                self._note(denoised, reading)
                guided.append((denoised, reading))
        self._give_up(logits, failed)
        return waiting, guided

    def _committed(
        self, device: torch.device, canvases: Sequence[ConstrainedCanvas]
    ) -> tuple[list[Denoised], list[ConstrainedCanvas]]:
        """Move the constraints past what vLLM commits in this step; return the other canvases, and
        those whose request has failed."""
        copies = self._copies(device)
        (where,) = copies.to_device(torch.tensor([canvas.index for canvas in canvases]))
        rows = copies.to_host(self._columns(where)).tolist()
        denoised: list[Denoised] = []
        failed: list[ConstrainedCanvas] = []
        for canvas, (committing, last, *tokens) in zip(canvases, rows, strict=True):
            if canvas.slot.error is not None:
                failed.append(canvas)
            elif not committing:
                denoised.append(Denoised(canvas, tokens, bool(last)))
            else:
                try:
                    canvas.slot.commit(tokens[: canvas.length])
                    if canvas.slot.mark is not None:
                        position, token = canvas.slot.mark
                        self._emitted[canvas.index][position] = token
                except Exception as error:
                    canvas.slot.fail(error)
                    failed.append(canvas)
        return denoised, failed

    def _fail(self, canvases: Sequence[ConstrainedCanvas], error: Exception) -> None:
        for canvas in canvases:
            canvas.slot.fail(error)

    def _give_up(self, logits: Tensor, canvases: Sequence[ConstrainedCanvas]) -> None:
        """Have canvases of failed requests converge now, on what the scheduler takes for an error;
        one that is committed in this step says so at once."""
        try:
            for canvas in canvases:
                self._emitted[canvas.index][:] = canvas.slot.payload.failed
                self._converge(logits, canvas)
        except Exception as error:
            failure(error)

    def ending(self, count: int) -> AbstractContextManager[None]:
        """Return a context within which each pass over the first `count` slots is the last of their
        canvases; what it changes in `moved` stays."""
        raise NotImplementedError

    def _columns(self, slots: Tensor) -> Tensor:
        """Return of each slot whether its canvas is committed in this step, whether this pass is
        its last, and the tokens that vLLM commits, or those before the pass."""
        committing = self.states.is_encoder_phase[slots].long()
        flags = torch.stack([committing, self._last(slots).long()], dim=1)
        return torch.cat((flags, self._emitted[slots]), dim=1)

    @property
    def _emitted(self) -> Tensor:
        """The tokens of each slot that vLLM emits where it commits."""
        raise NotImplementedError

    def _last(self, slots: Tensor) -> Tensor:
        """Return of each slot whether this pass over its canvas is the last."""
        raise NotImplementedError

    def _canvas(self, denoised: Denoised) -> GuidedCanvas:
        """Return a canvas as the guide reads it."""
        raise NotImplementedError

    def _note(self, denoised: Denoised, guidance: Guidance) -> None:
        """Note a pass over a canvas, before vLLM's step."""
        raise NotImplementedError

    def _correct(self, guided: Sequence[tuple[Denoised, Guidance]]) -> None:
        """Correct what vLLM's step has made of canvases."""
        raise NotImplementedError

    def _converge(self, logits: Tensor, canvas: ConstrainedCanvas) -> None:
        """Have the canvas of a failed request converge in this step, as it is."""
        raise NotImplementedError
