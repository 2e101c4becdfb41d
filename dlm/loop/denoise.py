"""One denoising pass in two halves: the model reads canvases, then their constraints decide.

Slots differ only in objects that are passed in, such as a grammar. This module knows no text and no
queue.
"""

from collections.abc import Container
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from dlm.config import DecodeConfig
from dlm.errors import UndefinedLogitsError
from dlm.grammar import Guidance
from dlm.kernels.configurations import BY_RULE, Tuned
from dlm.logits import sampling
from dlm.logits.canvas_logits import CanvasLogits
from dlm.logits.distributions import TokenDistributions
from dlm.logits.masks import MaskTable
from dlm.logits.sampling import Cut
from dlm.loop.decoding import PassPlan
from dlm.loop.interfaces import Cache, Denoiser
from dlm.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a pass for one canvas."""

    guidance: Guidance
    entropy: float  # mean nats over the scored positions
    accepted: list[bool]
    settled: bool  # whether the guess is ready to be committed


@dataclass(frozen=True, slots=True)
class PassOutput:
    """Output of the model for the canvases of a plan, before any constraint. It may be dropped: the
    same pass, repeated, has the same output."""

    plan: PassPlan
    distributions: TokenDistributions
    scores: list[CanvasLogits]  # by canvas
    seconds: float  # duration of the pass
    graphed: bool = False  # whether it was a CUDA graph


@torch.inference_mode()
def denoise(
    model: Denoiser,
    cache: Cache,
    plan: PassPlan,
    config: DecodeConfig,
    masks: MaskTable,
    by_kernel: bool | None = None,
    tuned: Tuned = BY_RULE,
) -> PassOutput | None:
    """Run one pass: encode what `plan` lists and denoise its canvases. Returns None if there are no
    canvases. The temperature of each canvas follows from its steps and its request. `masks` holds
    the masks of all grammars. `by_kernel` is whether a kernel reads the logits; None: on GPUs.
    `tuned` has its configurations."""
    running, start = list(plan.canvases.values()), perf_counter()
    if not running:
        model.encode(list(plan.encode.values()), cache, list(plan.encode))
        return None
    canvases = [sequence.canvas for sequence in running]
    tokens = torch.stack([canvas.tokens for canvas in canvases])
    soft_embeddings = torch.stack([canvas.soft_embedding for canvas in canvases])
    replays = _replays(model)
    logits = model.denoise(tokens, soft_embeddings, cache, list(plan.canvases), plan.encode)
    graphed = _replays(model) > replays
    for sequence in running:
        sequence.stats.denoiser_calls += 1
    output = pass_output(model, logits, plan, config, masks, by_kernel, tuned)
    return replace(output, seconds=perf_counter() - start, graphed=graphed)


def pass_output(
    model: Denoiser,
    logits: Float[Tensor, "B L V"],
    plan: PassPlan,
    config: DecodeConfig,
    masks: MaskTable,
    by_kernel: bool | None = None,
    tuned: Tuned = BY_RULE,
) -> PassOutput:
    """Return the distributions that `logits` are for the canvases of a plan."""
    running, start = list(plan.canvases.values()), perf_counter()
    uniform = torch.stack([_uniform(sequence, model) for sequence in running])
    temperatures = [_temperature(sequence, config) for sequence in running]
    cuts = [_cut(sequence) for sequence in running]
    distributions = TokenDistributions(
        logits, temperatures, uniform, model.softcap, masks, by_kernel, cuts, tuned
    )
    return PassOutput(plan, distributions, distributions.scores(), perf_counter() - start)


@torch.inference_mode()
def guide(output: PassOutput, config: DecodeConfig, work: int) -> list[Guidance | Exception | None]:
    """Query the constraints of the canvases, by index. Grammars do not move.

    A canvas whose logits are NaN or infinite has an `UndefinedLogitsError` instead of guidance. All
    constraints together may do `work` units of work. An exception of a constraint concerns its
    canvas alone. Questions have no guidance; to read their canvases may take another `work` units.
    """
    running, start = list(output.plan.canvases.values()), perf_counter()
    failed: dict[int, Exception] = {
        i: UndefinedLogitsError() for i in range(len(running)) if output.distributions.undefined(i)
    }
    failed |= _read_questions(running, failed, output.scores, work)
    share = max(1, work // len(running))
    guided = [
        failed.get(i)
        if sequence.question is not None or i in failed
        else _guide(sequence, i, output.scores[i], output.distributions, config, share)
        for i, sequence in enumerate(running)
    ]
    seconds = output.seconds, perf_counter() - start, 0.0
    for sequence in running:
        sequence.stats.spend(*seconds)
    return guided


@torch.inference_mode()
def settle(
    model: Denoiser,
    output: PassOutput,
    guided: list[Guidance | Exception | None],
    config: DecodeConfig,
) -> dict[int, Outcome | Exception]:
    """Advance each canvas that has guidance by one step; returns outcomes by slot. An exception is
    the outcome of its slot: that canvas stays as it is."""
    start = perf_counter()
    outcomes: dict[int, Outcome | Exception] = {
        slot: each
        for slot, each in zip(output.plan.canvases, guided, strict=True)
        if isinstance(each, Exception)
    }
    if any(isinstance(each, Guidance) for each in guided):
        outcomes |= _advance(model, output, guided, config)
    seconds = 0.0, 0.0, perf_counter() - start
    for sequence, each in zip(output.plan.canvases.values(), output.scores, strict=True):
        sequence.stats.spend(*seconds)
        sequence.stats.copies += output.distributions.copies.count + each.copies
        sequence.stats.fetched_rows += each.rows
        sequence.stats.graphed += output.graphed
    return outcomes


def _read_questions(
    running: list[Sequence], undefined: Container[int], scores: list[CanvasLogits], work: int
) -> dict[int, Exception]:
    """Read the canvases of questions that are not `undefined`; returns the errors of those that
    fail, by index. The first is read whatever it takes, further ones while there is `work` left.
    Canvases that are not read now are denoised again."""
    failed: dict[int, Exception] = {}
    left = work
    for i, sequence in enumerate(running):
        question = sequence.question
        if question is None or i in undefined:
            continue
        if left < question.reading_units and left < work:
            continue
        try:
            question.read(scores[i])
        except Exception as error:
            failed[i] = error
        left -= question.reading_units
    return failed


def _advance(
    model: Denoiser,
    output: PassOutput,
    guided: list[Guidance | Exception | None],
    config: DecodeConfig,
) -> dict[int, Outcome | Exception]:
    """Advance the canvases that have guidance by one step."""
    distributions, canvases = output.distributions, output.plan.canvases
    running = list(canvases.values())
    distributions.mask()
    entropies = distributions.entropies
    accepted = sampling.accept(entropies, config.entropy_bound)
    for i, each in enumerate(guided):
        if isinstance(each, Guidance):
            accepted[i, each.suspect :] = False
        else:
            distributions.exclude(i)
    draws = distributions.draws([min(1.0, float(s.request.temperature)) for s in running])
    (kept,) = distributions.copies.to_device(torch.where(accepted, draws, -1))
    noise = torch.empty_like(kept)
    for row, sequence, each in zip(noise, running, guided, strict=True):
        if isinstance(each, Guidance):  # all randomness is the request's own
            torch.randint(model.vocab_size, row.shape, generator=sequence.rng, out=row)
    tokens = sampling.renoise(noise, kept)
    expected = model.expected_embedding(distributions.distributions())
    soft_embeddings = expected.unflatten(0, kept.shape)
    outcomes: dict[int, Outcome | Exception] = {}
    rows = zip(entropies.numpy(), accepted.tolist(), tokens, soft_embeddings, strict=True)
    for slot, sequence, each, row in zip(canvases, running, guided, rows, strict=True):
        if isinstance(each, Guidance):
            outcomes[slot] = _update_canvas(sequence, each, *row, config)
    return outcomes


def _replays(model: Denoiser) -> int:
    """Return how many passes were CUDA graphs; 0 for models without graphs."""
    graphs = getattr(model, "graphs", None)
    return 0 if graphs is None else graphs.replays


def _temperature(sequence: Sequence, config: DecodeConfig) -> float:
    """Return the temperature of a canvas: the schedule's, times the request's if that is over 1. A
    temperature below 1 only sharpens the draws. Entropies must stay those of the schedule:
    otherwise unsure positions would count as sure."""
    N = config.max_steps
    if sequence.question is not None:
        return max(1.0, sequence.request.temperature)
    scheduled = sampling.temperature(N - sequence.canvas.steps, N, config.t_min, config.t_max)
    return scheduled * max(1.0, sequence.request.temperature)


def _cut(sequence: Sequence) -> Cut | None:
    """Return the cut of the request's distributions; None for questions, which need all of them. As
    in vLLM, a cut applies to the model's own probabilities, not to the schedule's. A request's
    temperature above 1 applies before it; one below 1 does not change it."""
    if sequence.question is not None:
        return None
    return Cut.of(sequence.request, max(1.0, float(sequence.request.temperature)))


def _uniform(sequence: Sequence, model: Denoiser) -> Float[Tensor, " L"]:
    """Return the numbers to draw by; a pass that is repeated for its constraint has the same
    ones."""
    canvas = sequence.canvas
    if canvas.uniform is None:
        L, device = len(canvas.tokens), model.device
        canvas.uniform = torch.rand(L, generator=sequence.rng, device=device)
    return canvas.uniform


def _guide(
    sequence: Sequence,
    i: int,
    scores: CanvasLogits,
    distributions: TokenDistributions,
    config: DecodeConfig,
    work: int,
) -> Guidance | Exception:
    """Query the constraint of canvas `i`, and restrict `distributions` to what it allows."""
    try:
        sequence.constraint.work = work
        fixed = sequence.canvas.fixed(config.max_steps)
        guidance = sequence.constraint.guide(scores, fixed)
        distributions.restrict(i, guidance)
    except Exception as error:
        return error
    finally:
        sequence.grammar_work += sequence.constraint.spent
    return guidance


def _update_canvas(
    sequence: Sequence,
    guidance: Guidance,
    entropies: Float32[np.ndarray, " L"],
    accepted: list[bool],
    tokens: Int[Tensor, " L"],
    soft_embedding: Float[Tensor, "L hidden"],
    config: DecodeConfig,
) -> Outcome | Exception:
    """Give the canvas its next `tokens` and `soft_embedding`, and decide whether it has settled."""
    try:
        canvas = sequence.canvas
        canvas.tokens = tokens
        canvas.soft_embedding, canvas.uniform = soft_embedding, None
        entropy = float(entropies[: guidance.scored].mean())
        settled = canvas.settle(guidance, entropy, config)
    except Exception as error:
        return error
    return Outcome(guidance=guidance, entropy=entropy, accepted=accepted, settled=settled)
