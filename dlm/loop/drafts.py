"""Drafts of what a causal model will write: by the same weights, which denoise a canvas behind it.

The pass that reads what was written, and a draft behind that, denoises the canvas that comes next.
Where the draft was written as it stood, the leading tokens that the canvas is sure of are the next
one. Nothing depends on it but how many passes an answer takes.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dlm.grammar import Unfinished
from dlm.logits.canvas_logits import DeviceCopies
from dlm.logits.masks import MaskTable
from dlm.loop.causal import DraftingLM
from dlm.loop.decoding import EngineContext
from dlm.loop.denoise import Outcome, pass_output, settle
from dlm.loop.pass_plan import PassPlan
from dlm.request import Stats
from dlm.sequence import Canvas, Sequence


class Drafts:
    """Canvases of the requests that run: each begins behind what its request's pass reads."""

    def __init__(self, parts: EngineContext):
        self._model: DraftingLM = parts.model
        self._config, self._work = parts.config, parts.policy.step_work
        self._masks = MaskTable(-(-self._model.vocab_size // 32))
        self._by_kernel, self._link = parts.by_kernel, DeviceCopies(self._model.device)

    def predict(
        self,
        tokens: Mapping[int, list[int]],
        last: Mapping[int, int],
        predicted: Mapping[int, Sequence],
        drafts: Mapping[int, list[int]],
        cache: Any,
    ) -> tuple[Float[Tensor, "n V"], Float[Tensor, "B L V"]]:
        """A pass that reads `tokens`, and a canvas behind those of each of the slots `predicted`,
        which end in `drafts`."""
        for slot, sequence in predicted.items():
            self._move(sequence, drafts[slot])
            sequence.stats.denoiser_calls += 1
        canvases = [sequence.canvas for sequence in predicted.values()]
        noisy = torch.stack([canvas.tokens for canvas in canvases])
        soft_embeddings = torch.stack([canvas.soft_embedding for canvas in canvases])
        return self._model.predict_and_denoise(tokens, last, noisy, soft_embeddings, cache)

    @torch.inference_mode()
    def draft(
        self, logits: Float[Tensor, "B L V"], written: Mapping[int, Sequence | None]
    ) -> list[tuple[int, Exception]]:
        """Draft what comes behind the tokens that were just written, the first of each canvas.

        `logits` are those of the canvases of all slots in `written`; None for a slot that no draft
        is wanted of. Where a canvas expected another token, what it says of the next ones is of no
        use. Returns what constraints raise.
        """
        expected = self._link.to_host(logits[:, 0].argmax(-1)).tolist()
        useful = {
            slot: (row, sequence)
            for row, (slot, sequence) in enumerate(written.items())
            if sequence is not None and sequence.tokens[-1] == expected[row]
        }
        running = {slot: sequence for slot, (_, sequence) in useful.items()}
        if not running:
            return []
        for sequence in running.values():
            sequence.canvas = _behind(sequence.canvas, 1)
            sequence.stats.copies += 1
        rows = [row for row, _ in useful.values()]
        more = self._config, self._masks, self._by_kernel
        reading = pass_output(self._model, logits[rows, 1:], PassPlan(canvases=running), *more)
        outcomes = settle(self._model, reading, self._config, self._work)
        for slot, outcome in outcomes.items():
            if isinstance(outcome, Outcome):
                _keep(running[slot], outcome)
        return [
            (slot, outcome)
            for slot, outcome in outcomes.items()
            if isinstance(outcome, Exception) and not isinstance(outcome, Unfinished)
        ]

    def _move(self, sequence: Sequence, draft: list[int]) -> None:
        """Let the canvas begin behind a draft: the rest of what it was, if all in front of that is
        as it guessed, or else noise."""
        writing, L = sequence.writing, self._model.canvas_length
        soft_embedding = self._model.no_soft_embedding()
        noise = torch.randint(
            self._model.vocab_size, (L,), generator=sequence.rng, device=self._model.device
        )
        begin = writing.guessed_at
        said = [] if begin is None else [*sequence.tokens[begin:], *draft]
        if begin is not None and said == writing.guess[: len(said)]:
            canvas = _behind(sequence.canvas, len(said))
            n = len(canvas.tokens)
            canvas.tokens = torch.cat((canvas.tokens, noise[n:]))
            canvas.soft_embedding = torch.cat((canvas.soft_embedding, soft_embedding[n:]))
            sequence.canvas = canvas
        else:
            sequence.canvas = Canvas(tokens=noise, soft_embedding=soft_embedding, stats=Stats())
        writing.guessed_at = None


def _keep(sequence: Sequence, outcome: Outcome) -> None:
    """The leading tokens that the sampler accepts are the next draft."""
    guess, writing = outcome.guidance.guess, sequence.writing
    sure = next((i for i, kept in enumerate(outcome.accepted) if not kept), len(guess))
    writing.draft, writing.guess = guess[:sure], guess
    writing.guessed_at = len(sequence.tokens)


def _behind(canvas: Canvas, count: int) -> Canvas:
    """What is left of a canvas behind its first `count` positions."""
    return Canvas(
        tokens=canvas.tokens[count:],
        soft_embedding=canvas.soft_embedding[count:],
        stats=canvas.stats,
        steps=canvas.steps,
    )
