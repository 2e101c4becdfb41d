"""One denoising pass over the canvases of all slots: schedule, denoise, guide, settle.

Knows no text and no queue. What varies from slot to slot, a grammar or none, is an object.
"""

from collections import abc
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dlm import sampling
from dlm.config import DecodeConfig
from dlm.grammar import Guidance
from dlm.kernels.grammar_mask import mask_logits_
from dlm.logits import Logits
from dlm.sequence import Sequence
from dlm.turn import Cache, Turn


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
        self, tokens: abc.Sequence[abc.Sequence[int]], cache: Any, slots: abc.Sequence[int]
    ) -> Tensor: ...

    def denoise(
        self,
        canvas: Int[Tensor, "B L"],
        soft_embedding: Float[Tensor, "B L hidden"],
        cache: Any,
        slots: abc.Sequence[int],
        encode: Mapping[int, abc.Sequence[int]],
    ) -> Float[Tensor, "B L V"]: ...

    def no_soft_embedding(self) -> Float[Tensor, "L hidden"]: ...

    def soft_embedding(self, logits: Float[Tensor, "*B V"]) -> Float[Tensor, "*B hidden"]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a pass did to one canvas."""

    guidance: Guidance
    entropy: float  # mean nats over the scored positions
    accepted: list[bool]
    settled: bool  # the guess is ready to be committed


@torch.inference_mode()
def denoise_step(
    model: Denoiser, cache: Cache, turn: Turn, config: DecodeConfig, work: int
) -> dict[int, Outcome | Exception]:
    """One pass: it encodes what `turn` says and denoises its canvases. Grammars do not move.

    All constraints together may do `work` units of it. What a constraint raises is its slot's
    outcome: that canvas stays as it is, and the others do not notice.
    """
    slots, running = list(turn.canvases), list(turn.canvases.values())
    if not running:
        model.encode(list(turn.encode.values()), cache, list(turn.encode))
        return {}
    clock, work = [perf_counter()], max(1, work // len(running))
    logits = _denoise(model, cache, turn, config)
    argmax = logits.argmax(-1).tolist()  # waits for the device
    clock.append(perf_counter())

    readings = [_guide(*one, config, work) for one in zip(running, logits, argmax, strict=True)]
    clock.append(perf_counter())

    entropies = sampling.entropy(logits)
    accepted = sampling.accept(entropies, config.entropy_bound)
    soft_embeddings = model.soft_embedding(logits)
    outcomes: dict[int, Outcome | Exception] = {}
    for i, slot in enumerate(slots):
        each = running[i], readings[i], logits[i], entropies[i], accepted[i], soft_embeddings[i]
        outcomes[slot] = _settle(*each, config)
    clock.append(perf_counter())
    for sequence in running:
        sequence.stats.spend(clock)
    return outcomes


def _denoise(
    model: Denoiser, cache: Cache, turn: Turn, config: DecodeConfig
) -> Float[Tensor, "B L V"]:
    """Logits of all canvases, scaled by each one's temperature: it has so many passes left."""
    canvases, N = [sequence.canvas for sequence in turn.canvases.values()], config.max_steps
    tokens = torch.stack([canvas.tokens for canvas in canvases])
    soft_embeddings = torch.stack([canvas.soft_embedding for canvas in canvases])
    logits = model.denoise(tokens, soft_embeddings, cache, list(turn.canvases), turn.encode)
    heat = [sampling.temperature(N - c.steps, N, config.t_min, config.t_max) for c in canvases]
    return logits / torch.tensor(heat, device=logits.device)[:, None, None]


def _guide(
    sequence: Sequence,
    logits: Float[Tensor, "L V"],
    argmax: list[int],
    config: DecodeConfig,
    work: int,
) -> Guidance | Exception:
    """Ask the constraint, and forbid in `logits` what it forbids."""
    try:
        sequence.constraint.work = work
        fixed = sequence.canvas.fixed(config.max_steps)
        read = sequence.constraint.guide(Logits(logits, argmax), fixed)
        if len(read.guess) != len(argmax):
            raise ValueError(f"a guess of {len(read.guess)} tokens for {len(argmax)} positions")
        if read.bitmask is not None:
            mask_logits_(logits[: len(read.rows)], read.bitmask, read.rows)
    except Exception as error:
        return error
    return read


def _settle(
    sequence: Sequence,
    read: Guidance | Exception,
    logits: Float[Tensor, "L V"],
    entropies: Float[Tensor, "L"],
    accepted: Bool[Tensor, "L"],
    soft_embedding: Float[Tensor, "L hidden"],
    config: DecodeConfig,
) -> Outcome | Exception:
    """Accept sure positions, noise the others, and see whether the guess is ready."""
    if isinstance(read, Exception):
        return read
    try:
        accepted[read.suspect :] = False
        canvas = sequence.canvas
        canvas.tokens = _renoised(logits, accepted, sequence.rng)
        canvas.soft_embedding = soft_embedding
        entropy = entropies[: read.scored].mean().item()
        settled = canvas.settle(read, entropy, config)
    except Exception as error:
        return error
    return Outcome(guidance=read, entropy=entropy, accepted=accepted.tolist(), settled=settled)


def _renoised(
    logits: Float[Tensor, "L V"], accepted: Bool[Tensor, "L"], rng: torch.Generator
) -> Int[Tensor, "L"]:
    """Draws where positions are accepted, noise elsewhere; all randomness is the request's own."""
    L, V = logits.shape
    uniform = torch.rand(L, generator=rng, device=logits.device)
    noise = torch.randint(V, (L,), generator=rng, device=logits.device)
    drawn = sampling.draw(logits[accepted], uniform[accepted])
    return sampling.renoise(noise, accepted, drawn)
