"""One denoising pass in two halves: the model reads canvases, then their constraints decide.

Slots differ only in objects that are passed in, such as a grammar. This module knows no text and no
queue.
"""

from collections.abc import Callable, Collection, Container
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from dlm.canvas import Canvas
from dlm.config import DecodeConfig
from dlm.errors import UndefinedLogitsError
from dlm.grammar import Guidance, Unfinished
from dlm.logits.canvas_logits import CanvasLogits
from dlm.logits.distributions import TokenDistributions
from dlm.logits.masks import is_forced, row_at
from dlm.logits.refused import RefusedRow
from dlm.logits.sampling import Cut
from dlm.logits.work_shares import answers_within
from dlm.logprobs import TokenLogprob
from dlm.loop.decoding import EngineContext
from dlm.loop.interfaces import Denoiser
from dlm.loop.pass_plan import PassPlan
from dlm.samplers import Sampler
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


Guided = Guidance | Exception | None
"""Answer of a canvas's constraint; None for the canvas of a question."""


@torch.inference_mode()
def denoise(context: EngineContext, plan: PassPlan) -> PassOutput | None:
    """Run one pass: encode what `plan` lists and denoise its canvases. Returns None if there are no
    canvases. The temperature of each canvas follows from its steps and its request."""
    model, cache = context.model, context.cache
    running, start = list(plan.canvases.values()), perf_counter()
    if not running:
        model.encode(list(plan.encode.values()), cache, list(plan.encode))
        return None
    tokens, soft_embeddings = canvas_inputs([sequence.canvas for sequence in running])
    replays = _replays(model)
    logits = model.denoise(tokens, soft_embeddings, cache, list(plan.canvases), plan.encode)
    graphed = _replays(model) > replays
    for sequence in running:
        sequence.stats.denoiser_calls += 1
    exclude_(logits, context.config)
    output = pass_output(context, logits, plan)
    return replace(output, seconds=perf_counter() - start, graphed=graphed)


def canvas_inputs(
    canvases: list[Canvas],
) -> tuple[Int[Tensor, "B L"], Float[Tensor, "B L hidden"] | None]:
    """Return what the model sees of canvases: tokens, and soft embeddings if they are carried."""
    soft = [canvas.soft_embedding for canvas in canvases if canvas.soft_embedding is not None]
    return torch.stack([canvas.tokens for canvas in canvases]), torch.stack(soft) if soft else None


def pass_output(
    context: EngineContext, logits: Float[Tensor, "B L V"], plan: PassPlan
) -> PassOutput:
    """Return the distributions that `logits` are for the canvases of a plan. Tokens that are never
    written are excluded already."""
    model, config = context.model, context.config
    running, start = list(plan.canvases.values()), perf_counter()
    uniform = torch.stack([_uniform(sequence, model) for sequence in running])
    temperatures = [_temperature(sequence, config) for sequence in running]
    cuts = [_cut(sequence) for sequence in running]
    distributions = TokenDistributions(
        logits,
        temperatures,
        uniform,
        model.softcap,
        context.masks,
        context.by_kernel,
        cuts,
        [sequence.canvas.prompted for sequence in running],
        [sequence.canvas.refused for sequence in running],
    )
    return PassOutput(plan, distributions, distributions.scores(), perf_counter() - start)


@torch.inference_mode()
def guide(context: EngineContext, output: PassOutput) -> list[Guided]:
    """Query the constraints of the canvases, by index. Grammars do not move.

    A canvas whose logits are NaN or infinite has an `UndefinedLogitsError` instead of guidance. All
    constraints together may do the work of a step. An exception of a constraint concerns its canvas
    alone. Questions have no guidance; to read their canvases may take as much work again.
    """
    work = context.policy.step_work
    running, start = list(output.plan.canvases.values()), perf_counter()
    failed: dict[int, Exception] = {
        i: UndefinedLogitsError() for i in range(len(running)) if output.distributions.undefined(i)
    }
    failed |= _read_questions(running, failed, output.scores, work)
    edits = _edits(running, output, context.config.sampler)
    queries = {
        i: partial(_guide, sequence, i, output, context.config, edits.get(i, ()))
        for i, sequence in enumerate(running)
        if sequence.question is None and i not in failed
    }
    answers = dict(zip(queries, answers_within(work, [*queries.values()]), strict=True)) | failed
    guided = [answers.get(i) for i in range(len(running))]
    seconds = perf_counter() - start
    for sequence in running:
        sequence.stats.spend(denoise=output.seconds, guide=seconds)
    return guided


@torch.inference_mode()
def settle(
    context: EngineContext, output: PassOutput, guided: list[Guided]
) -> dict[int, Outcome | Exception]:
    """Advance each canvas that has guidance by one step; returns outcomes by slot. An exception is
    the outcome of its slot: that canvas stays as it is."""
    start = perf_counter()
    outcomes: dict[int, Outcome | Exception] = {
        slot: answer
        for slot, answer in zip(output.plan.canvases, guided, strict=True)
        if isinstance(answer, Exception)
    }
    if any(isinstance(answer, Guidance) for answer in guided):
        outcomes |= _advance(context, output, guided)
    seconds = perf_counter() - start
    for sequence, scores in zip(output.plan.canvases.values(), output.scores, strict=True):
        sequence.stats.spend(settle=seconds)
        sequence.stats.copies += output.distributions.copies.count + scores.copies
        sequence.stats.fetched_rows += scores.rows
        sequence.stats.graphed += output.graphed
    return outcomes


def _read_questions(
    running: list[Sequence], undefined: Container[int], scores: list[CanvasLogits], work: int
) -> dict[int, Exception]:
    """Read the canvases of questions that are not `undefined`; returns the errors of those that
    fail, by index. The first is read whatever it takes, further ones while there is `work` left.
    Canvases that are not read now are denoised again."""
    failed: dict[int, Exception] = {}
    work_left = work
    for i, sequence in enumerate(running):
        question = sequence.question
        if question is None or i in undefined:
            continue
        if work_left < question.reading_units and work_left < work:
            continue
        try:
            question.read(scores[i])
        except Exception as error:
            failed[i] = error
        work_left -= question.reading_units
    return failed


def _advance(
    context: EngineContext, output: PassOutput, guided: list[Guided]
) -> dict[int, Outcome | Exception]:
    """Advance the canvases that have guidance by one step."""
    model, config = context.model, context.config
    distributions, canvases = output.distributions, output.plan.canvases
    running = list(canvases.values())
    distributions.mask()
    entropies, sampler = distributions.entropies, config.sampler
    free = torch.zeros(entropies.shape, dtype=torch.bool)
    for i, (sequence, answer) in enumerate(zip(running, guided, strict=True)):
        if not isinstance(answer, Guidance):
            distributions.exclude(i)
        elif sampler.mask is None:
            free[i, sequence.canvas.prompted :][: answer.suspect] = True
        else:
            free[i, sequence.canvas.prompted :][sequence.canvas.masked(answer)] = True
    accepted = sampler.accept(distributions, free) & free
    if sampler.mask is None:
        chosen = distributions.draws([min(1.0, _requested_temperature(s)) for s in running])
    else:
        chosen = torch.full(accepted.shape, -1)
        for i, (sequence, answer) in enumerate(zip(running, guided, strict=True)):
            if isinstance(answer, Guidance):
                begin = sequence.canvas.prompted
                chosen[i, begin:] = torch.tensor(answer.guess)
                accepted[i, begin:][sequence.canvas.standing] = True  # what stands already
    (kept,) = distributions.copies.to_device(torch.where(accepted, chosen, -1))
    before, _ = canvas_inputs([sequence.canvas for sequence in running])
    rngs = [
        s.rng if isinstance(g, Guidance) else None for s, g in zip(running, guided, strict=True)
    ]
    tokens = sampler.next(before, kept, rngs, model.vocab_size)  # all randomness is the request's
    for i, sequence in enumerate(running):
        if begin := sequence.canvas.prompted:
            tokens[i, :begin] = before[i, :begin]
    soft_embeddings = [None] * len(running)
    if sampler.carries:
        expected = model.expected_embedding(distributions.distributions())
        soft_embeddings = expected.unflatten(0, kept.shape)
    outcomes: dict[int, Outcome | Exception] = {}
    rows = zip(entropies.numpy(), accepted.tolist(), tokens, soft_embeddings, strict=True)
    for i, (slot, sequence, answer, row) in enumerate(
        zip(canvases, running, guided, rows, strict=True)
    ):
        if isinstance(answer, Guidance):
            outcomes[slot] = outcome = _update_canvas(sequence, answer, *row, config)
            top = sequence.request.logprobs
            if top is not None and isinstance(outcome, Outcome):
                _note_logprobs(sequence.canvas, outcome, top, partial(distributions.logprobs, i))
    return outcomes


def _replays(model: Denoiser) -> int:
    """Return how many passes were CUDA graphs; 0 for models without graphs."""
    graphs = getattr(model, "graphs", None)
    return 0 if graphs is None else graphs.replays


def first_embedding(model: Any, sampler: Sampler) -> Float[Tensor, "L hidden"] | None:
    """Return the soft embedding of a canvas that no pass has read; None if none is carried."""
    return model.no_soft_embedding() if sampler.carries else None


def exclude_(logits: Float[Tensor, "*n V"], config: DecodeConfig) -> None:
    """Give the tokens that are never written no probability."""
    for token in config.never_written:
        logits[..., token] = -torch.inf


def _requested_temperature(sequence: Sequence) -> float:
    """Return the request's temperature; 1 if it has none."""
    temperature = sequence.request.temperature
    return 1.0 if temperature is None else temperature


def _temperature(sequence: Sequence, config: DecodeConfig) -> float:
    """Return the temperature of a canvas: the schedule's, times the request's if that is over 1. A
    temperature below 1 only sharpens the draws. Entropies must stay those of the schedule:
    otherwise unsure positions would count as sure."""
    if sequence.question is not None:
        return max(1.0, _requested_temperature(sequence))
    scheduled = config.sampler.temperature(sequence.canvas.steps)
    return scheduled * max(1.0, _requested_temperature(sequence))


def _cut(sequence: Sequence) -> Cut | None:
    """Return the cut of the request's distributions; None for questions, which need all of them. As
    in vLLM, a cut applies to the model's own probabilities, not to the schedule's. A request's
    temperature above 1 applies before it; one below 1 does not change it."""
    if sequence.question is not None:
        return None
    return Cut.of(sequence.request, max(1.0, _requested_temperature(sequence)))


def _uniform(sequence: Sequence, model: Denoiser) -> Float[Tensor, " L"]:
    """Return the numbers to draw by; a pass that is repeated for its constraint has the same
    ones."""
    canvas = sequence.canvas
    if canvas.uniform is None:
        L, device = len(canvas.tokens), model.device
        canvas.uniform = torch.rand(L, generator=sequence.rng, device=device)
    return canvas.uniform


def _edits(running: list[Sequence], output: PassOutput, sampler: Sampler) -> dict[int, list[int]]:
    """Return the positions of each canvas where the model would replace a token that stands, and
    the sampler lets it; empty for samplers without edits."""
    if sampler.edit_threshold is None:
        return {}
    sure, edits = output.distributions.confidences > sampler.edit_threshold, {}
    for i, sequence in enumerate(running):
        canvas, argmax = sequence.canvas, output.scores[i].argmax
        edits[i] = [
            position
            for position, token in canvas.held.items()
            if sure[i, canvas.prompted + position] and argmax[position] != token
        ]
    return edits


def _guide(
    sequence: Sequence,
    i: int,
    output: PassOutput,
    config: DecodeConfig,
    edits: Collection[int],
    work: int,
) -> tuple[Guidance | Exception, int]:
    """Query the constraint of canvas `i` within `work` units, and restrict its distributions to
    what it allows. Returns the answer and the units that it took."""
    constraint, canvas = sequence.constraint, sequence.canvas
    try:
        constraint.work = work
        fixed = canvas.fixed(config.sampler.max_steps, edits)
        answer = constraint.guide(output.scores[i], fixed)
        output.distributions.restrict(i, answer)
    except Exception as error:
        answer = error
        canvas.work += work if isinstance(error, Unfinished) else 0
    sequence.grammar_work += constraint.spent
    return answer, constraint.spent


def _note_logprobs(
    canvas: Canvas, outcome: Outcome, top: int, logprobs: Callable[..., list[TokenLogprob]]
) -> None:
    """Note the log-probabilities of the tokens that the pass has fixed, each once."""
    guidance, chosen = outcome.guidance, list[int]()
    guess = guidance.guess
    for position in canvas.without_logprobs(guidance, outcome.settled):
        if is_forced(row_at(guidance, position)):
            canvas.logprobs[position] = TokenLogprob.forced(guess[position], top)
        else:
            chosen.append(position)
    if chosen:
        computed = logprobs(chosen, [guess[position] for position in chosen], top)
        canvas.logprobs |= zip(chosen, computed, strict=True)


def _update_canvas(
    sequence: Sequence,
    guidance: Guidance,
    entropies: Float32[np.ndarray, " L"],
    accepted: list[bool],
    tokens: Int[Tensor, " L"],
    soft_embedding: Float[Tensor, "L hidden"] | None,
    config: DecodeConfig,
) -> Outcome | Exception:
    """Give the canvas its next `tokens` and `soft_embedding`, and decide whether it has settled."""
    try:
        canvas = sequence.canvas
        entropies, accepted = entropies[canvas.prompted :], accepted[canvas.prompted :]
        if config.sampler.mask is not None:
            canvas.keep(accepted, guidance, config.sampler.edit_threshold is not None)
        canvas.tokens = tokens
        canvas.soft_embedding, canvas.uniform = soft_embedding, None
        canvas.refused = RefusedRow.of(guidance)
        scored = entropies[: guidance.scored]
        entropy = float(scored.sum() / len(scored))
        settled = canvas.settle(guidance, entropy, config)
        if config.sampler.mask is not None and canvas.steps >= config.sampler.max_steps:
            canvas.show_pinned()  # the last passes pin
    except Exception as error:
        return error
    return Outcome(guidance=guidance, entropy=entropy, accepted=accepted, settled=settled)
