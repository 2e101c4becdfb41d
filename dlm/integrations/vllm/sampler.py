"""vLLM's sampler for diffusion, on logits that are rewritten by the grammars.

A request's canvas is denoised, converges, and is committed in the pass after that. vLLM accepts,
noises again and converges on its own; here its logits are rewritten before (`LogitsGuide`), and
constraints follow what it commits. A step with constraints waits for the device twice: for the
state of the canvases, and for what was read of their logits.

Nothing here may raise, since that would end the engine. A request that fails is given a canvas that
the scheduler takes for an error. A canvas whose constraint needs another step's work is put back as
it was: the same pass shows it the same logits again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dlm.errors import failure
from dlm.grammar import Unfinished
from dlm.integrations.vllm.needs import MOVED
from dlm.integrations.vllm.slots import Slot, Slots
from dlm.logits.canvas_logits import DeviceCopies
from dlm.logits.guided import GuidedCanvas, LogitsGuide, name_rows_


@dataclass(frozen=True, slots=True)
class ConstrainedCanvas:
    """A constrained request's rows in a step."""

    index: int  # of vLLM's slot
    slot: Slot
    first: int
    length: int


class ConstrainedSampler:
    """Stands where vLLM's sampler stood; without constraints in a batch it does nothing."""

    def __init__(self, inner: Any, states: Any, slots: Slots, guide: LogitsGuide):
        """`states` are vLLM's per-request tensors of diffusion."""
        self._inner, self._states, self._slots, self._guide = inner, states, slots, guide

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, logits: Tensor, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        canvases = self._constrained(input_batch)
        held: list[int] = []
        if canvases:
            try:
                held = self._prepare(logits, canvases)
            except Exception as error:
                for canvas in canvases:
                    canvas.slot.fail(error)
                self._give_up(logits, canvases)
        if not held:
            return self._inner(logits, input_batch, *args, **kwargs)
        (where,) = DeviceCopies(logits.device).to_device(torch.tensor(held))
        places = [getattr(self._states, name) for name in MOVED]
        places.append(self._inner.req_states.draft_tokens)
        before = [place[where].clone() for place in places]
        output = self._inner(logits, input_batch, *args, **kwargs)
        for place, value in zip(places, before, strict=True):
            place[where] = value
        return output

    def _constrained(self, input_batch: Any) -> list[ConstrainedCanvas]:
        if input_batch.num_draft_tokens == 0 or not len(self._slots):
            return []
        n = input_batch.num_reqs
        indices = input_batch.idx_mapping_np[:n].tolist()
        starts = input_batch.cu_num_logits_np[: n + 1].tolist()
        return [
            ConstrainedCanvas(index, slot, first, end - first)
            for index, first, end in zip(indices, starts, starts[1:], strict=False)
            if end > first and (slot := self._slots.get(index)) is not None
        ]

    def _prepare(self, logits: Tensor, canvases: Sequence[ConstrainedCanvas]) -> list[int]:
        """Commit what was taken, rewrite the rows of the rest; return the slots that are held."""
        states = self._states
        indices = torch.tensor([canvas.index for canvas in canvases])
        (where,) = DeviceCopies(logits.device).to_device(indices)
        columns = [states.is_encoder_phase, states.step, states.max_steps]
        numbers = torch.stack([column[where].long() for column in columns], dim=1)
        read = torch.cat((numbers, states.argmax_canvas[where]), dim=1).tolist()
        denoised: list[tuple[ConstrainedCanvas, bool]] = []
        failed: list[ConstrainedCanvas] = []
        for canvas, (committing, step, most, *tokens) in zip(canvases, read, strict=True):
            if canvas.slot.error is not None:
                failed.append(canvas)
            elif not committing:
                denoised.append((canvas, step + 1 >= most))
            else:
                try:
                    canvas.slot.commit(tokens[: canvas.length])
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
        held = []
        for (canvas, _), reading in zip(denoised, readings, strict=True):
            if isinstance(reading, Unfinished):
                held.append(canvas.index)
            elif isinstance(reading, Exception):
                canvas.slot.fail(reading)
                failed.append(canvas)
            else:
                canvas.slot.note(reading, self._slots.config)
        self._give_up(logits, failed)
        return held

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
