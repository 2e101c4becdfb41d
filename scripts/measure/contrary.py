"""Denoisers without weights that work against a constraint, and the engine's loop over canvases.

The loop is the engine's own: constraint, sampler, settling, pins and budget. Only the arithmetic on
`[L, V]` logits is left out, which cannot change the result: for random logits, the best of some
allowed tokens is any of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dlm import DecodeConfig, Stats
from dlm.canvas import Canvas
from dlm.grammar import BudgetError, Candidates, Compiled, Frontier, Guidance, Vocabulary
from dlm.grammar.masks import tokens_in
from dlm.logits.distributions import TokenDistributions
from dlm.samplers import EntropyBound, Reveal, Sampler
from measure.schemas import MASK, PAD, STOPS, L

_OPENING = ("[", "{", '"', "a", " ", ",", "1", "\\")
_FORGOTTEN = 0.1  # share of a text's tokens that `forgetful` replaces in a pass

Denoiser = Literal["random", "spiteful", "endless", "forgetful"]
"""`random` wants any tokens; `spiteful` forbidden ones, stop tokens first, and is surest at the end
of a canvas; `endless` never prefers to stop, and is sure of all it wants; `forgetful` wants a valid
text, but for other tokens in each pass."""

_REVEALING: dict[str, dict[str, Any]] = {
    "threshold": {"threshold": 0.9},
    "surest": {"threshold": 1.0},  # one position a pass
    "doubt": {"threshold": 0.9, "doubt": 0.5},
    "edits": {"threshold": 0.5, "edit_threshold": 0.0},
}
SAMPLERS: dict[str, Sampler] = {"noise": EntropyBound()}
SAMPLERS |= {name: Reveal(mask=MASK, **settings) for name, settings in _REVEALING.items()}
SAMPLERS |= {
    f"{name}-prefix": Reveal(mask=MASK, order="prefix", **settings)
    for name, settings in _REVEALING.items()
    if "doubt" not in settings
}


class ContraryScores:
    """Scores of a denoiser without weights for the positions of a canvas, drawn when they are
    read."""

    def __init__(
        self,
        kind: Denoiser,
        vocabulary: Vocabulary,
        length: int,
        rng: np.random.Generator,
        text: Sequence[int] = (),
    ):
        """`text` is what `forgetful` wants from the beginning of the canvas on."""
        self._kind, self._vocabulary, self._rng = kind, vocabulary, rng
        stops = list(vocabulary.stops)
        self.argmax: list[int] = rng.integers(len(vocabulary), size=length).tolist()
        self.confidences = rng.random(length)  # of the masked positions
        if kind == "spiteful":
            unwanted = [*stops, vocabulary.pad, *vocabulary.control]
            self.argmax = rng.choice(unwanted, size=length).tolist()
            self.confidences.sort()
        elif kind == "endless":  # it opens brackets and strings and does not close them
            opening = [vocabulary.fewest([piece.encode()]) for piece in _OPENING]
            begun = [tokens[0] for tokens in opening if tokens]
            anything = rng.integers(len(vocabulary), size=len(begun))
            self.argmax = rng.choice([*begun, *anything], size=length).tolist()
            self.confidences[:] = 1.0
        elif kind == "forgetful":
            forgotten = rng.random(length) < _FORGOTTEN
            for position, token in enumerate(text[:length]):
                if not forgotten[position]:
                    self.argmax[position] = token

    def best(self, position: int, allowed: np.ndarray) -> int:
        return self.candidates(position, allowed, 1).ranked[0][0]

    def candidates(self, position: int, allowed: np.ndarray, count: int) -> Candidates:
        tokens = tokens_in(allowed)
        if not len(tokens):
            return Candidates(ranked=[], mass=0.0)
        stops = np.isin(tokens, self._vocabulary.stops)
        if self._kind == "spiteful" and stops.any():
            tokens = tokens[stops]
        elif self._kind == "endless" and not stops.all():
            tokens = tokens[~stops]
        some = self._rng.choice(tokens, size=min(count, len(tokens)), replace=False)
        share = len(tokens) / len(self._vocabulary)
        logp = float(np.log(1 / len(self._vocabulary)))
        return Candidates(ranked=[(int(token), logp) for token in some], mass=share)


class _Confidences(TokenDistributions):
    """Distributions of one canvas of which only the confidences are known."""

    def __init__(self, scores: ContraryScores):
        self._known = torch.from_numpy(scores.confidences).float()[None]

    @property
    def confidences(self) -> Float[Tensor, "B L"]:
        return self._known


@dataclass(slots=True, kw_only=True)
class ContraryAnswer:
    """Answer of a denoiser without weights, and how its canvases went."""

    tokens: list[int]
    passes: int = 0
    idle: int = 0  # passes over a masked canvas with holes that revealed nothing
    late: int = 0  # passes over masked canvases beyond those that they may take


def shortest(compiled: Compiled) -> int:
    """Return the tokens of the shortest answer, its stop included."""
    try:
        Frontier(compiled, 1)
    except BudgetError as error:
        return error.needed
    return 1


def answer(
    compiled: Compiled,
    kind: Denoiser,
    max_tokens: int,
    rng: np.random.Generator,
    sampler: Sampler = SAMPLERS["noise"],
    length: int = L,
    text: Sequence[int] = (),
) -> ContraryAnswer:
    """Run the engine's loop for one request, on scores instead of logits.

    Canvases have `length` positions; the first masked one also holds the end of a prompt, at random
    positions. `text` is what `forgetful` wants.
    """
    config = DecodeConfig(sampler=sampler, stops=STOPS, pad=PAD)
    constraint, stats, nothing = Frontier(compiled, max_tokens), Stats(), torch.zeros(1)
    constraint.work = 1 << 60
    made = ContraryAnswer(tokens=[])
    positions = length if sampler.mask is None else int(rng.integers(1, length + 1))
    while not made.tokens or (made.tokens[-1] not in STOPS and len(made.tokens) < max_tokens):
        canvas = Canvas(tokens=nothing, soft_embedding=None, stats=stats)
        wanted = text[len(made.tokens) :]
        while True:
            scores = ContraryScores(kind, compiled.vocabulary, positions, rng, wanted)
            fixed = canvas.fixed(sampler.max_steps, _edits(sampler, canvas, scores))
            guidance = constraint.guide(scores, fixed)
            if sampler.mask is not None:
                made.idle += not _reveal(sampler, canvas, scores, guidance)
            if canvas.settle(guidance, float("inf"), config):
                break
        made.passes += canvas.steps
        if isinstance(sampler, Reveal):
            edit_passes = 0 if sampler.edit_threshold is None else sampler.edit_passes
            made.late += max(0, canvas.steps - positions - edit_passes)
        committed = guidance.guess[: guidance.stop + 1][: max_tokens - len(made.tokens)]
        constraint.commit(committed)
        made.tokens += committed
        positions = length
    return made


def _edits(sampler: Sampler, canvas: Canvas, scores: ContraryScores) -> list[int]:
    """Return the positions whose tokens the model would replace, and the sampler lets it."""
    if sampler.edit_threshold is None:
        return []
    return [
        position
        for position, token in canvas.held.items()
        if scores.confidences[position] > sampler.edit_threshold
        and scores.argmax[position] != token
    ]


def _reveal(sampler: Sampler, canvas: Canvas, scores: ContraryScores, guidance: Guidance) -> bool:
    """Let the positions stand that the sampler accepts. Returns False if none does on a canvas that
    has masks."""
    standing, masks = canvas.standing, canvas.masked(guidance)
    free = torch.zeros(1, len(scores.argmax), dtype=torch.bool)
    free[0, masks] = True
    accepted = sampler.accept(_Confidences(scores), free) & free
    revealed = canvas.complete or bool(accepted.any())
    accepted[0, standing] = True
    canvas.keep(accepted[0].tolist(), guidance, sampler.edit_threshold is not None)
    return revealed or canvas.complete  # an edit may end the text before all masks
