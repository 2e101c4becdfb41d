"""Self-speculation in two passes, as the makers of Nemotron-Labs-Diffusion describe it.

One pass drafts a block, the last written token and masks after it, and takes all of its tokens; the
next one reads them causally, keeps those that it would have written, and writes one more. The
engine drafts and verifies in one pass (`dlm/loop/drafts.py`). Answers are the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import dlm
from dlm.canvas import Canvas
from dlm.grammar import Unfinished
from dlm.loop.decoding import EngineContext
from dlm.loop.denoise import Outcome, canvas_inputs, exclude_, guide, pass_output, settle
from dlm.loop.drafts import Drafts
from dlm.loop.left_to_right import CausalOutput, StepResult, TokenDecoder
from dlm.loop.pass_plan import PassPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoPasses(dlm.Autoregressive):
    """Decoding left to right whose drafts take a pass of their own, on masked canvases."""

    drafts: bool = True

    def decoder(self, context: EngineContext) -> TokenDecoder:
        return _TwoPassDecoder(context, self)


class _TwoPassDecoder(TokenDecoder):
    def __init__(self, context: EngineContext, decoding: TwoPasses):
        super().__init__(context, decoding)
        self._drafts = self._own = _OwnPass(context, self._cache)

    def draft(
        self,
        output: CausalOutput | None,
        outcomes: Mapping[int, StepResult | Exception],
        running: Mapping[int, Any],
        events: list[dlm.Event],
    ) -> dict[int, Exception]:
        verified = {} if output is None else output.plan.canvases
        written = {
            slot: sequence
            for slot, sequence in verified.items()
            if running.get(slot) is sequence
            and sequence.ready
            and isinstance(outcomes[slot], StepResult)
        }
        return self._own.draft_after(written) if written else {}


class _OwnPass(Drafts):
    """Drafts that take a pass of their own, and all of a block's tokens that the grammar takes."""

    def __init__(self, context: EngineContext, cache: Any):
        sampler: Any = context.config.sampler
        if sampler.mask is None:
            raise dlm.DlmError("drafts in a pass of their own need a masked model")
        config = replace(context.config, sampler=replace(sampler, threshold=0.0))
        super().__init__(replace(context, config=config))
        self._cache = cache

    def predict(
        self, tokens: Any, last: Any, predicted: Any, drafts: Any, cache: Any
    ) -> tuple[Tensor, Tensor]:
        """Read `tokens`, which end in drafts, and denoise nothing."""
        no_canvas = torch.empty(0, self._model.canvas_length, self._model.vocab_size)
        return self._model.predict(tokens, last, cache), no_canvas

    @torch.inference_mode()
    def draft_after(self, written: Mapping[int, Any]) -> dict[int, Exception]:
        """Denoise a block after the tokens of each slot that are read, and make it the next
        draft."""
        for slot, sequence in written.items():
            unread = sequence.unencoded(self._cache.length(slot))
            tokens = self._sampler.start(
                sequence.rng, self._model.canvas_length, self._model.vocab_size
            )
            tokens[: len(unread)] = torch.tensor(unread, dtype=tokens.dtype)
            sequence.canvas = Canvas(tokens=tokens, soft_embedding=None, stats=dlm.Stats())
            sequence.canvas.prompted = len(unread)
            sequence.stats.causal_calls += 1
        canvas, _ = canvas_inputs([sequence.canvas for sequence in written.values()])
        nothing = {slot: [] for slot in written}
        nowhere = dict.fromkeys(written, 0)
        _, logits = self._model.predict_and_denoise(nothing, nowhere, canvas, None, self._cache)
        exclude_(logits, self._context.config)
        output = pass_output(self._context, logits, PassPlan(canvases=dict(written)))
        outcomes = settle(self._context, output, guide(self._context, output))
        for slot, outcome in outcomes.items():
            if isinstance(outcome, Outcome):
                kept = next((i for i, kept in enumerate(outcome.accepted) if not kept), None)
                written[slot].state.draft = outcome.guidance.guess[:kept]
        return {
            slot: outcome
            for slot, outcome in outcomes.items()
            if isinstance(outcome, Exception) and not isinstance(outcome, Unfinished)
        }
