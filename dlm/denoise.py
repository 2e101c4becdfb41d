"""One denoising pass over the canvases of all slots: schedule, denoise, guide, settle.

Knows no request, no text and no queue. What varies from slot to slot, a grammar or none, is an
object passed in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dlm import sampling
from dlm.config import DecodeConfig
from dlm.grammar import GrammarError, Guidance
from dlm.kernels.grammar_mask import mask_logits_
from dlm.scores import Scores
from dlm.slot import Slot


@runtime_checkable
class Cache(Protocol):
    """What the model remembers of each slot's committed tokens."""

    def length(self, slot: int) -> int: ...

    def rewind(self, slot: int, length: int) -> None: ...


@runtime_checkable
class Denoiser(Protocol):
    """All that the engine asks of a model; `DiffusionGemma` is one."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def canvas_length(self) -> int: ...

    @property
    def max_positions(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def new_cache(self, slots: int) -> Any: ...  # a Cache, of the model's own kind

    def encode(
        self, tokens: Sequence[Sequence[int]], cache: Any, slots: Sequence[int]
    ) -> Tensor: ...

    def denoise(
        self,
        canvas: Int[Tensor, "B L"],
        soft_embedding: Float[Tensor, "B L hidden"],
        cache: Any,
        slots: Sequence[int],
    ) -> Float[Tensor, "B L V"]: ...

    def no_soft_embedding(self) -> Float[Tensor, "L hidden"]: ...

    def soft_embedding(self, logits: Float[Tensor, "*B V"]) -> Float[Tensor, "*B hidden"]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a pass did to one slot's canvas."""

    guidance: Guidance
    entropy: float  # mean nats over the scored positions
    accepted: list[bool]
    settled: bool  # the guess is ready to be committed


@torch.inference_mode()
def denoise_step(
    model: Denoiser, cache: Cache, slots: dict[int, Slot], config: DecodeConfig
) -> dict[int, Outcome | GrammarError]:
    """One pass over the canvas of every slot. Cached tokens and grammars stay as they are.

    A slot whose constraint cannot go on gets its error, and the others do not notice.
    """
    running = list(slots.values())
    clock = [perf_counter()]
    logits = _denoise(model, cache, slots, _schedule(running, config))
    argmax = logits.argmax(-1).tolist()  # waits for the device
    clock.append(perf_counter())

    readings = [_guide(*one, config) for one in zip(running, logits, argmax, strict=True)]
    clock.append(perf_counter())

    entropies = sampling.entropy(logits)
    accepted = sampling.accept(entropies, config.entropy_bound)
    soft_embeddings = model.soft_embedding(logits)
    outcomes: dict[int, Outcome | GrammarError] = {}
    for i, (number, slot) in enumerate(slots.items()):
        read = readings[i]
        if isinstance(read, GrammarError):
            outcomes[number] = read
            continue
        accepted[i, read.suspect :] = False
        slot.canvas = _next_canvas(logits[i], accepted[i], slot)
        slot.soft_embedding = soft_embeddings[i]
        mean = entropies[i, : read.scored].mean().item()
        settled = settle(slot, read, mean, config)
        outcomes[number] = Outcome(
            guidance=read, entropy=mean, accepted=accepted[i].tolist(), settled=settled
        )
    clock.append(perf_counter())
    for slot in running:
        slot.stats.spend(clock)
    return outcomes


def _schedule(running: list[Slot], config: DecodeConfig) -> list[float]:
    """Each slot's temperature, by the passes that its canvas has left."""
    N = config.max_steps
    return [sampling.temperature(N - s.steps, N, config.t_min, config.t_max) for s in running]


def _denoise(
    model: Denoiser, cache: Cache, slots: dict[int, Slot], temperatures: list[float]
) -> Float[Tensor, "B L V"]:
    """Logits of all canvases, scaled by their slots' temperatures."""
    canvases = torch.stack([slot.canvas for slot in slots.values()])
    soft_embeddings = torch.stack([slot.soft_embedding for slot in slots.values()])
    logits = model.denoise(canvases, soft_embeddings, cache, list(slots))
    return logits / torch.tensor(temperatures, device=logits.device)[:, None, None]


def _guide(
    slot: Slot, logits: Float[Tensor, "L V"], argmax: list[int], config: DecodeConfig
) -> Guidance | GrammarError:
    """Ask the slot's constraint, and forbid in `logits` what it forbids."""
    try:
        read = slot.constraint.guide(Scores(logits, argmax), slot.fixed(config.max_steps))
    except GrammarError as error:
        return error
    if read.bitmask is not None:
        mask_logits_(logits[: len(read.rows)], read.bitmask, read.rows)
    return read


def _next_canvas(logits: Float[Tensor, "L V"], accepted: Tensor, slot: Slot) -> Int[Tensor, "L"]:
    """Draws where positions are accepted, noise elsewhere; all randomness is the slot's own."""
    L, V = logits.shape
    uniform = torch.rand(L, generator=slot.rng, device=logits.device)
    noise = torch.randint(V, (L,), generator=slot.rng, device=logits.device)
    drawn = sampling.draw(logits[accepted], uniform[accepted])
    return sampling.renoise(noise, accepted, drawn)


def settle(slot: Slot, guidance: Guidance, entropy: float, config: DecodeConfig) -> bool:
    """Count the pass, fix what is stuck, and say whether the guess is ready.

    It is not while some of it was predicted under a wrong left context. The bound: from the pass
    `max_steps` on, each pins at least what the grammar is sure of and twice as many positions as
    the one before, so a canvas of L positions takes at most `max_steps + log2(L) + 1` passes.
    Without a constraint nothing is suspect, and it takes `max_steps`.
    """
    guess, suspect = guidance.guess, guidance.suspect
    slot.steps += 1
    slot.stats.denoiser_calls += 1
    slot.stats.repairs += guidance.repaired
    stable, slot.guess = guess == slot.guess, guess
    late = slot.steps - config.max_steps
    if suspect >= guidance.scored:
        return late >= 0 or sampling.settled(stable, entropy, config.confidence)
    slot.waited = 0 if suspect > slot.frontier else slot.waited + 1
    slot.frontier = max(slot.frontier, suspect)
    if late >= 0:
        slot.pin(guess[: max(suspect, len(slot.pinned) + 2**late)])
        return len(slot.pinned) >= guidance.scored
    if slot.waited >= config.patience:
        lost = guidance.mass < config.lost and guidance.choice >= 0
        if lost and slot.retries < config.retries:
            slot.take_back(guidance.choice, guess[guidance.choice])
        elif slot.banned:
            slot.restore()
        else:
            slot.pin(guess[:suspect])
    return False
