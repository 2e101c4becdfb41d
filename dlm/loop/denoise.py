"""One denoising pass, in two halves: the model reads canvases, their constraints decide on them.

Knows no text and no queue. What varies from slot to slot, a grammar or none, is an object.
"""

from collections import abc
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dlm.config import DecodeConfig
from dlm.grammar import Guidance
from dlm.kernels.expectation import Distributions
from dlm.logits import sampling
from dlm.logits.canvas_logits import CanvasLogits
from dlm.logits.distributions import TokenDistributions
from dlm.logits.masks import MaskTable
from dlm.logits.sampling import Cut
from dlm.loop.decoding import Model
from dlm.loop.pass_plan import Cache, PassPlan
from dlm.sequence import Sequence


@runtime_checkable
class Denoiser(Model, Protocol):
    """All that decoding in canvases asks of a model; `DiffusionGemma` is one."""

    @property
    def canvas_length(self) -> int: ...

    def encode(
        self, tokens: abc.Sequence[abc.Sequence[int]], cache: Any, slots: abc.Sequence[int]
    ) -> Tensor: ...

    def denoise(
        self,
        canvas: Int[Tensor, "B L"],
        soft_embedding: Float[Tensor, "B L hidden"],
        cache: Any,
        slots: abc.Sequence[int],
        encode: Mapping[int, abc.Sequence[int]],
    ) -> Float[Tensor, "B L V"]:
        """Logits before the softcap, in the model's own dtype."""
        ...

    def no_soft_embedding(self) -> Float[Tensor, "L hidden"]: ...

    def expected_embedding(self, distributions: Distributions) -> Float[Tensor, "n hidden"]:
        """The soft embeddings that the next pass is shown.

        With a table of embeddings, `distributions.expected(table)` is all there is to it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a pass did to one canvas."""

    guidance: Guidance
    entropy: float  # mean nats over the scored positions
    accepted: list[bool]
    settled: bool  # the guess is ready to be committed


@dataclass(frozen=True, slots=True)
class PassOutput:
    """What the model says of the canvases of a turn. Their constraints have not seen it yet.

    It may be thrown away: the same pass, made again, says the same.
    """

    turn: PassPlan
    marginals: TokenDistributions
    scores: list[CanvasLogits]  # by canvas
    seconds: float  # that the pass took
    graphed: bool = False  # it was a CUDA graph


@torch.inference_mode()
def denoise(
    model: Denoiser,
    cache: Cache,
    turn: PassPlan,
    config: DecodeConfig,
    masks: MaskTable,
    by_kernel: bool | None = None,
) -> PassOutput | None:
    """One pass: it encodes what `turn` says and reads its canvases, if it has any.

    The temperature of each canvas follows from its passes and its request. `masks` keeps those of
    all grammars; `by_kernel` says who reads the logits, by default their device.
    """
    running, start = list(turn.canvases.values()), perf_counter()
    if not running:
        model.encode(list(turn.encode.values()), cache, list(turn.encode))
        return None
    canvases = [sequence.canvas for sequence in running]
    tokens = torch.stack([canvas.tokens for canvas in canvases])
    soft_embeddings = torch.stack([canvas.soft_embedding for canvas in canvases])
    replays = _replays(model)
    logits = model.denoise(tokens, soft_embeddings, cache, list(turn.canvases), turn.encode)
    graphed = _replays(model) > replays
    for sequence in running:
        sequence.stats.denoiser_calls += 1
    reading = pass_output(model, logits, turn, config, masks, by_kernel)
    return replace(reading, seconds=perf_counter() - start, graphed=graphed)


def pass_output(
    model: Denoiser,
    logits: Float[Tensor, "B L V"],
    turn: PassPlan,
    config: DecodeConfig,
    masks: MaskTable,
    by_kernel: bool | None = None,
) -> PassOutput:
    """What `logits` say of the canvases of a turn."""
    running, start = list(turn.canvases.values()), perf_counter()
    uniform = torch.stack([_uniform(sequence, model) for sequence in running])
    heat = [_heat(sequence, config) for sequence in running]
    cuts = [_cut(sequence) for sequence in running]
    marginals = TokenDistributions(logits, heat, uniform, model.softcap, masks, by_kernel, cuts)
    scores = [marginals.scores(i) for i in range(len(running))]
    return PassOutput(turn, marginals, scores, perf_counter() - start)


@torch.inference_mode()
def settle(
    model: Denoiser, reading: PassOutput, config: DecodeConfig, work: int
) -> dict[int, Outcome | Exception]:
    """Ask the constraints, and take each canvas a step further. Grammars do not move.

    All constraints together may do `work` units of it. What a constraint raises is its slot's
    outcome: that canvas stays as it is, and the others do not notice. Canvases of questions are
    read, which may take as much work again, and have no outcome.
    """
    marginals, scores, canvases = reading.marginals, reading.scores, reading.turn.canvases
    running, start = list(canvases.values()), perf_counter()
    failed = _read_questions(running, scores, work)
    share = max(1, work // len(running))
    readings = [
        failed.get(i)
        if sequence.asked is not None
        else _guide(sequence, i, scores[i], marginals, config, share)
        for i, sequence in enumerate(running)
    ]
    guided = perf_counter()
    outcomes: dict[int, Outcome | Exception] = {
        slot: read
        for slot, read in zip(canvases, readings, strict=True)
        if isinstance(read, Exception)
    }
    if any(isinstance(read, Guidance) for read in readings):
        outcomes |= _go_on(model, reading, readings, config)
    seconds = reading.seconds, guided - start, perf_counter() - guided
    for sequence, said in zip(running, scores, strict=True):
        sequence.stats.spend(*seconds)
        sequence.stats.copies += marginals.link.copies + said.copies
        sequence.stats.fetched_rows += said.rows
        sequence.stats.graphed += reading.graphed
    return outcomes


def _read_questions(
    running: list[Sequence], scores: list[CanvasLogits], work: int
) -> dict[int, Exception]:
    """Read the canvases of questions; tells of those that fail, by their places.

    The first is read whatever it takes, others while there is `work` left. What is not read now is
    denoised again.
    """
    failed: dict[int, Exception] = {}
    left = work
    for i, sequence in enumerate(running):
        asked = sequence.asked
        if asked is None or (left < asked.reading_units and left < work):
            continue
        try:
            asked.read(scores[i])
        except Exception as error:
            failed[i] = error
        left -= asked.reading_units
    return failed


def _go_on(
    model: Denoiser,
    reading: PassOutput,
    readings: list[Guidance | Exception | None],
    config: DecodeConfig,
) -> dict[int, Outcome | Exception]:
    """Take those canvases a step further whose constraints have said how."""
    marginals, canvases = reading.marginals, reading.turn.canvases
    running = list(canvases.values())
    marginals.mask()
    entropies = marginals.entropies
    accepted = sampling.accept(entropies, config.entropy_bound)
    for i, read in enumerate(readings):
        if isinstance(read, Guidance):
            accepted[i, read.suspect :] = False
        else:
            marginals.leave_out(i)
    draws = marginals.draws([min(1.0, float(s.request.temperature)) for s in running])
    (kept,) = marginals.link.to_device(torch.where(accepted, draws, -1))
    noise = torch.empty_like(kept)
    for row, sequence, read in zip(noise, running, readings, strict=True):
        if isinstance(read, Guidance):  # all randomness is the request's own
            torch.randint(model.vocab_size, row.shape, generator=sequence.rng, out=row)
    tokens = sampling.renoise(noise, kept)
    soft_embeddings = marginals.expected(model.expected_embedding).unflatten(0, kept.shape)
    outcomes: dict[int, Outcome | Exception] = {}
    for i, (slot, read) in enumerate(zip(canvases, readings, strict=True)):
        if isinstance(read, Guidance):
            each = running[i], read, entropies[i], accepted[i], tokens[i], soft_embeddings[i]
            outcomes[slot] = _settle(*each, config)
    return outcomes


def _replays(model: Denoiser) -> int:
    """How many passes of a model were CUDA graphs; those that are no Gemma have none."""
    graphs = getattr(model, "graphs", None)
    return 0 if graphs is None else graphs.replays


def _heat(sequence: Sequence, config: DecodeConfig) -> float:
    """The temperature of a canvas: the schedule's, and more where the request asks for more.

    One that asks for less has what is drawn sharpened, and nothing else: entropies must stay what
    the schedule makes them, or unsure positions would pass for sure ones.
    """
    N = config.max_steps
    if sequence.asked is not None:
        return max(1.0, sequence.request.temperature)
    scheduled = sampling.temperature(N - sequence.canvas.steps, N, config.t_min, config.t_max)
    return scheduled * max(1.0, sequence.request.temperature)


def _cut(sequence: Sequence) -> Cut | None:
    """Return what the request leaves of its distributions; questions ask for all of them.

    As in vLLM, probabilities are the model's own then, not the schedule's: of a request that asks
    for more heat, of that much. A lower temperature leaves the cut as it is.
    """
    if sequence.asked is not None:
        return None
    return Cut.of(sequence.request, max(1.0, float(sequence.request.temperature)))


def _uniform(sequence: Sequence, model: Denoiser) -> Float[Tensor, " L"]:
    """Numbers to draw by. A pass that its constraint did not finish is made again with the same."""
    canvas = sequence.canvas
    if canvas.uniform is None:
        L, device = len(canvas.tokens), model.device
        canvas.uniform = torch.rand(L, generator=sequence.rng, device=device)
    return canvas.uniform


def _guide(
    sequence: Sequence,
    i: int,
    scores: CanvasLogits,
    marginals: TokenDistributions,
    config: DecodeConfig,
    work: int,
) -> Guidance | Exception:
    """Ask the constraint of canvas `i`, and forbid in `marginals` what it forbids."""
    L = len(scores.argmax)
    try:
        sequence.constraint.work = work
        fixed = sequence.canvas.fixed(config.max_steps)
        read = sequence.constraint.guide(scores, fixed)
        if len(read.guess) != L:
            raise ValueError(f"a guess of {len(read.guess)} tokens for {L} positions")
        if not 0 <= read.suspect <= L:
            raise ValueError(f"position {read.suspect} of {L} is suspect")
        marginals.restrict(i, read)
    except Exception as error:
        return error
    return read


def _settle(
    sequence: Sequence,
    read: Guidance,
    entropies: Float[Tensor, " L"],
    accepted: Bool[Tensor, " L"],
    tokens: Int[Tensor, " L"],
    soft_embedding: Float[Tensor, "L hidden"],
    config: DecodeConfig,
) -> Outcome | Exception:
    """Show the next pass `tokens` and `soft_embedding`, and see whether the guess is ready."""
    try:
        canvas = sequence.canvas
        canvas.tokens = tokens
        canvas.soft_embedding, canvas.uniform = soft_embedding, None
        entropy = entropies[: read.scored].mean().item()
        settled = canvas.settle(read, entropy, config)
    except Exception as error:
        return error
    return Outcome(guidance=read, entropy=entropy, accepted=accepted.tolist(), settled=settled)
