"""Modes of an evaluation: how an engine decodes, and what is done with an answer.

The decodings here lost against the engine's own. They are kept only to be compared with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

import dlm
from dlm.grammar import (
    NOTHING,
    Compiled,
    Fixed,
    Frontier,
    Guidance,
    Reasoning,
    Scores,
)
from dlm.grammar.canvas.canvas_pass import CanvasPass
from dlm.grammar.masks import tokens_in
from dlm.kernels.expectation import Distributions
from dlm.logits.distributions import TokenDistributions
from dlm.loop.decoding import EngineContext
from dlm.loop.denoise import Outcome, PassOutput
from dlm.loop.diffusion import CanvasDecoder, CanvasOutcomes
from dlm.loop.pass_plan import PassPlan
from evaluation.two_passes import TwoPasses


class _Decoder(CanvasDecoder):
    """Decoder that knows its decoding."""

    def __init__(self, context: EngineContext, decoding: Any):
        super().__init__(context)
        self._decoding = decoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Guided(dlm.Diffusion):
    """Decoding with another frontier."""

    frontier: type[Frontier]

    def decoder(self, context: EngineContext) -> CanvasDecoder:
        return _Guided(context, self)


class _Guided(_Decoder):
    def constrain(
        self, sequence: Any, compiled: Compiled | None, reasoning: Reasoning | None
    ) -> None:
        super().constrain(sequence, compiled, reasoning)
        if compiled is not None:
            frontier = self._decoding.frontier
            sequence.constraint = frontier(
                compiled, sequence.request.max_tokens, reasoning, self._policy.step_work
            )


class AtCommit(Frontier):
    """A frontier without masks: the grammar only decides which tokens are committed."""

    def guide(self, scores: Scores, fixed: Fixed = NOTHING) -> Guidance:
        guidance = super().guide(scores, replace(fixed, last=True))  # any pass may be the last
        return replace(guidance, bitmask=None, rows=[], suspect=len(guidance.guess))


class WholeChain(Frontier):
    """A frontier with masks along the whole guess, after a wrong left context too."""

    def _advance(self, scores: Scores, here: CanvasPass) -> bool:
        going_on = super()._advance(scores, here)
        here.repair = None  # each disagreement counts as the first: no position after it is suspect
        return going_on


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw(dlm.Diffusion):
    """Decoding that takes some quantities from the model's distributions without masks."""

    soft_embeddings: bool = False  # those that the next pass sees
    entropies: bool = False  # those by which positions are accepted and the guess is settled

    def decoder(self, context: EngineContext) -> CanvasDecoder:
        return _Raw(context, self)


class _Raw(_Decoder):
    def run(self, plan: PassPlan) -> PassOutput | None:
        output = super().run(plan)
        if output is None:
            return None
        distributions = _RawDistributions(output.distributions, self._decoding)
        return replace(output, distributions=distributions)


class _RawDistributions(TokenDistributions):
    """Token distributions that also keep their values from before the masks."""

    def __init__(self, masked: TokenDistributions, decoding: Raw):
        vars(self).update(vars(masked))
        self._decoding = decoding

    def mask(self) -> None:
        before = super().distributions()
        lists = replace(before.listed, found=before.listed.found.clone())  # masks change them
        self._before = super().entropies, replace(before, listed=lists)
        super().mask()

    @property
    def entropies(self) -> Tensor:
        return self._before[0] if self._decoding.entropies else super().entropies

    def distributions(self) -> Distributions:
        return self._before[1] if self._decoding.soft_embeddings else super().distributions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refilled(dlm.Diffusion):
    """Decoding that fills positions without an accepted token with other than uniform noise."""

    by: Literal["allowed", "draft"]  # noise of tokens that the grammar allows; the guess itself

    def decoder(self, context: EngineContext) -> CanvasDecoder:
        return _Refilled(context, self)


class _Refilled(_Decoder):
    def settle(self, plan: PassPlan, output: PassOutput | None, guidance: Any) -> CanvasOutcomes:
        outcomes = super().settle(plan, output, guidance)
        for slot, outcome in outcomes.items():
            if isinstance(outcome, Outcome):
                self._refill(plan.canvases[slot], outcome)
        return outcomes

    def _refill(self, sequence: Any, outcome: Outcome) -> None:
        tokens, guidance = sequence.canvas.tokens.clone(), outcome.guidance
        for i, accepted in enumerate(outcome.accepted):
            if accepted:
                continue
            if self._decoding.by == "draft":
                tokens[i] = guidance.guess[i]
            elif i < len(guidance.rows) and guidance.bitmask is not None:
                tokens[i] = _allowed(guidance.rows[i], guidance.bitmask, sequence.rng)
        sequence.canvas.tokens = tokens


def _allowed(row: int, bitmask: Tensor, rng: torch.Generator) -> int:
    """Draw one of the tokens that a row of the guidance allows, with equal probability."""
    if row < 0:
        return ~row
    some = tokens_in(bitmask[row].numpy().view(np.uint32))
    return int(some[int(torch.randint(len(some), (), generator=rng))])


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """A way to decode, as its differences from the engine's default."""

    name: str
    what: str  # description for readers of the report
    decoding: dlm.Diffusion | dlm.Autoregressive = field(default_factory=dlm.Diffusion)
    config: Mapping[str, Any] = field(default_factory=dict)  # fields of `DecodeConfig` that differ
    sampler: Mapping[str, Any] = field(default_factory=dict)  # settings of its sampler, likewise
    schema: Mapping[str, Any] = field(default_factory=dict)  # fields of `JsonSchema` that differ
    constrained: bool = True
    tries: int = 1  # an invalid answer is generated again with another seed, up to this many times
    equals: str | None = None  # the mode whose answers it must give, token for token


CONSTRAINED = Mode(
    name="diffusion constrained",
    what="the grammar acts in every pass: masks up to the first disagreement, noise after it",
)
FREE = Mode(
    name="diffusion free",
    what="canvases are denoised without a grammar",
    constrained=False,
)
AT_COMMIT = Mode(
    name="diffusion masked at commit",
    what="denoised without a grammar, which corrects only what is committed",
    decoding=Guided(frontier=AtCommit),
)
DRAFTED = Mode(
    name="left to right drafted",
    what="canvases draft; the causal half keeps the tokens it would write, under the grammar",
    decoding=dlm.Autoregressive(drafts=True),
)
LEFT_TO_RIGHT = Mode(
    name="left to right constrained",
    what="the same weights' causal half under the grammar; forced tokens need no pass",
    decoding=dlm.Autoregressive(),
)
LEFT_TO_RIGHT_FREE = Mode(
    name="left to right free",
    what="the causal half without a grammar, one token a pass",
    decoding=dlm.Autoregressive(),
    constrained=False,
)
DRAFTED_FREE = Mode(
    name="left to right drafted free",
    what="canvases draft, and the causal half keeps the tokens it would write",
    decoding=dlm.Autoregressive(drafts=True),
    constrained=False,
)
DECODINGS = (
    CONSTRAINED,
    FREE,
    Mode(
        name="diffusion retried",
        what="without a grammar; an invalid answer is generated again, up to four times",
        constrained=False,
        tries=4,
    ),
    AT_COMMIT,
    LEFT_TO_RIGHT,
    LEFT_TO_RIGHT_FREE,
    DRAFTED,
)
EXAMS = (
    FREE,
    CONSTRAINED,
    DRAFTED_FREE,
    DRAFTED,
)
MASKED = (
    CONSTRAINED,
    Mode(
        name="diffusion constrained prefix",
        what="no token is revealed to the right of a mask",
        sampler={"order": "prefix"},
    ),
    Mode(
        name="diffusion constrained doubt",
        what="no token is revealed to the right of masks with more than half a token of doubt",
        sampler={"doubt": 0.5},
    ),
    FREE,
    Mode(
        name="diffusion free prefix",
        what="no grammar, and no token is revealed to the right of a mask",
        sampler={"order": "prefix"},
        constrained=False,
    ),
    Mode(
        name="diffusion free doubt",
        what="no grammar, and no token right of masks with more than half a token of doubt",
        sampler={"doubt": 0.5},
        constrained=False,
    ),
    LEFT_TO_RIGHT,
    replace(DRAFTED, equals=LEFT_TO_RIGHT.name),
    Mode(
        name="left to right in two passes",
        what="a pass drafts all of a block, and the next one verifies it, under the grammar",
        decoding=TwoPasses(),
        equals=LEFT_TO_RIGHT.name,
    ),
    LEFT_TO_RIGHT_FREE,
    replace(DRAFTED_FREE, equals=LEFT_TO_RIGHT_FREE.name),
    Mode(
        name="left to right in two passes free",
        what="a pass drafts all of a block, and the next one verifies it",
        decoding=TwoPasses(),
        constrained=False,
        equals=LEFT_TO_RIGHT_FREE.name,
    ),
)
POLICIES = (
    CONSTRAINED,
    FREE,
    AT_COMMIT,
    Mode(
        name="masks along the whole chain",
        what="no position is suspect: predictions after a wrong left context are accepted too",
        decoding=Guided(frontier=WholeChain),
    ),
    Mode(
        name="pinned without patience",
        what="positions are pinned as soon as the part that the grammar confirms stops growing",
        config={"patience": 1},
    ),
    Mode(
        name="raw soft embeddings",
        what="the next pass is shown the model's own distributions, without masks",
        decoding=Raw(soft_embeddings=True),
    ),
    Mode(
        name="raw entropies",
        what="accepting and settling are decided by the model's own distributions, without masks",
        decoding=Raw(entropies=True),
    ),
    Mode(
        name="noise from allowed tokens",
        what="where no token is accepted, the next pass sees noise of tokens the grammar allows",
        decoding=Refilled(by="allowed"),
    ),
    Mode(
        name="drafts instead of noise",
        what="where no token is accepted, the next pass sees the guess itself",
        decoding=Refilled(by="draft"),
    ),
)


def _settings(name: str, what: str, field: str, values: Sequence[float]) -> list[Mode]:
    """Return a mode for each value of a field of `DecodeConfig` or of its sampler."""
    own = field in dlm.DecodeConfig.__dataclass_fields__
    return [
        Mode(
            name=f"{name} {value:g}",
            what=what,
            config={field: value} if own else {},
            sampler={} if own else {field: value},
        )
        for value in values
    ]


NUMBERS = (
    CONSTRAINED,
    *_settings(
        "entropy bound",
        "nats that a pass may accept; 0.1 by default",
        "entropy_bound",
        (0.02, 0.05, 0.2, 0.5),
    ),
    *_settings(
        "steps",
        "passes a canvas before positions are pinned; 48 by default, 24 in the built-in checkpoint",
        "max_steps",
        (8, 16, 24),
    ),
    *_settings(
        "patience",
        "passes that the first disagreement may stay where it is; 8 by default",
        "patience",
        (2, 4, 16),
    ),
    *_settings(
        "lost",
        "probability of all allowed tokens below which a choice is undone; 0.001 by default",
        "lost",
        (0.0, 0.03),
    ),
    *(
        Mode(
            name=f"white space {most}",
            what="characters of white space in a row; 8 by default",
            schema={"max_whitespace": most},
        )
        for most in (1, 2, 32)
    ),
)
STUDIES = {
    "decodings": DECODINGS,
    "policies": POLICIES,
    "numbers": NUMBERS,
    "exams": EXAMS,
    "masked": MASKED,
    "constraint": (FREE, CONSTRAINED),
}
