"""Drafts for a causal model, by the same weights: they denoise a canvas after the written tokens.

A pass reads the written tokens and a draft, and denoises the canvas after these. If the whole draft
was kept, the leading tokens of which the canvas is sure are the next draft. Drafts change how many
passes an answer takes, and nothing else.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dlm.canvas import Canvas
from dlm.errors import UndefinedLogitsError
from dlm.grammar import Unfinished
from dlm.logits.canvas_logits import DeviceCopies
from dlm.loop.decoding import EngineContext
from dlm.loop.denoise import (
    Outcome,
    canvas_inputs,
    exclude_,
    first_embedding,
    guide,
    pass_output,
    settle,
)
from dlm.loop.interfaces import DraftingLM
from dlm.loop.pass_plan import PassPlan
from dlm.request import Stats
from dlm.sequence import Sequence


class Drafts:
    """Draft canvases of the running requests: each begins after what its request's pass reads."""

    def __init__(self, context: EngineContext):
        self._model: DraftingLM = context.model
        self._context, self._sampler = context, context.config.sampler
        self._copies = DeviceCopies(self._model.device)

    def predict(
        self,
        tokens: Mapping[int, list[int]],
        last: Mapping[int, int],
        predicted: Mapping[int, Sequence],
        drafts: Mapping[int, list[int]],
        cache: Any,
    ) -> tuple[Float[Tensor, "n V"], Float[Tensor, "B L V"]]:
        """Run a pass that reads `tokens` and denoises a canvas after those of each slot in
        `predicted`. The tokens of these slots end in `drafts`."""
        for slot, sequence in predicted.items():
            self._move_canvas(sequence, drafts[slot])
            sequence.stats.denoiser_calls += 1
        canvas, soft_embeddings = canvas_inputs(
            [sequence.canvas for sequence in predicted.values()]
        )
        return self._model.predict_and_denoise(tokens, last, canvas, soft_embeddings, cache)

    @torch.inference_mode()
    def draft(
        self, logits: Float[Tensor, "B L V"], written: Mapping[int, Sequence | None]
    ) -> dict[int, Outcome | Exception]:
        """Draft what comes after the tokens just written, each of which is the first of its canvas.

        `logits` are those of the canvases of all slots in `written`; the value is None for slots
        that need no draft. A canvas that expected another first token is of no use. Returns the
        outcomes of useful canvases, and the exceptions of constraints, by slot.
        """
        exclude_(logits, self._context.config)
        expected = self._copies.to_host(logits[:, 0].argmax(-1)).tolist()
        useful = {
            slot: (row, sequence)
            for row, (slot, sequence) in enumerate(written.items())
            if sequence is not None and sequence.tokens[-1] == expected[row]
        }
        running = {slot: sequence for slot, (_, sequence) in useful.items()}
        if not running:
            return {}
        for sequence in running.values():
            sequence.canvas = _after(sequence.canvas, 1)
            sequence.stats.copies += 1
        rows = [row for row, _ in useful.values()]
        output = pass_output(self._context, logits[rows, 1:], PassPlan(canvases=running))
        guided = guide(self._context, output)
        outcomes = settle(self._context, output, guided)
        for slot, outcome in outcomes.items():
            if isinstance(outcome, Outcome):
                _keep(running[slot], outcome)
        return {
            slot: outcome
            for slot, outcome in outcomes.items()
            if not isinstance(outcome, Unfinished | UndefinedLogitsError)
        }

    def _move_canvas(self, sequence: Sequence, draft: list[int]) -> None:
        """Move the canvas to after a draft. If the tokens before that are the ones the canvas
        guessed, the rest of the canvas is kept; otherwise it begins anew."""
        state, model = sequence.state, self._model
        soft_embedding = first_embedding(model, self._sampler)
        tokens = self._sampler.start(sequence.rng, model.canvas_length, model.vocab_size)
        begin = state.guessed_at
        written = [] if begin is None else [*sequence.tokens[begin:], *draft]
        if begin is not None and written == state.guess[: len(written)]:
            canvas = _after(sequence.canvas, len(written))
            n = len(canvas.tokens)
            canvas.tokens = torch.cat((canvas.tokens, tokens[n:]))
            if canvas.soft_embedding is not None and soft_embedding is not None:
                canvas.soft_embedding = torch.cat((canvas.soft_embedding, soft_embedding[n:]))
            sequence.canvas = canvas
        else:
            sequence.canvas = Canvas(tokens=tokens, soft_embedding=soft_embedding, stats=Stats())
        state.guessed_at = None


def _keep(sequence: Sequence, outcome: Outcome) -> None:
    """Make the leading tokens that the sampler accepts the next draft."""
    guess, state = outcome.guidance.guess, sequence.state
    sure = next((i for i, kept in enumerate(outcome.accepted) if not kept), len(guess))
    state.draft, state.guess = guess[:sure], guess
    state.guessed_at = len(sequence.tokens)


def _after(canvas: Canvas, count: int) -> Canvas:
    """Return the canvas without its first `count` positions."""
    return Canvas(
        tokens=canvas.tokens[count:],
        soft_embedding=None if canvas.soft_embedding is None else canvas.soft_embedding[count:],
        stats=canvas.stats,
        steps=canvas.steps,
    )
