"""Plan of one pass: tokens to encode and canvases to denoise.

It depends only on the running requests and on how much of them the cache holds.
"""

from collections import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from dlm.models.pages import CHUNK
from dlm.sequence import Sequence


@runtime_checkable
class Cache(Protocol):
    """Keys and values of each slot's committed tokens."""

    @property
    def capacity(self) -> int | None:
        """Number of tokens of all slots together; None: it grows."""
        ...

    @property
    def usage(self) -> float:
        """Share of its memory that is held; any thread may read it."""
        ...

    def length(self, slot: int) -> int: ...

    def fits(self, tokens: int) -> bool:
        """Whether a slot could reserve `tokens` tokens now."""
        ...

    def reserve(self, slot: int, tokens: int) -> None: ...

    def attach(self, slot: int, tokens: abc.Sequence[int]) -> int | None:
        """Begin a prompt in an empty slot; returns how many of its tokens are cached already. None:
        other slots are about to encode a good part of it; try again after the next pass."""
        ...

    def rewind(self, slot: int, length: int) -> int:
        """Keep at most the first `length` tokens; returns how many are kept."""
        ...

    def release(self, slot: int) -> None: ...


@dataclass(frozen=True, slots=True)
class PassPlan:
    """Work of one pass. A canvas can be denoised, or a next token predicted, in the pass that
    encodes the last tokens before it."""

    encode: dict[int, list[int]] = field(default_factory=dict)  # tokens to append, by slot
    canvases: dict[int, Sequence] = field(default_factory=dict)  # encoded thereby, by slot

    def __bool__(self) -> bool:
        return bool(self.encode or self.canvases)


def plan_pass(running: Mapping[int, Sequence], cache: Cache, budget: int) -> PassPlan:
    """Return what the next pass does for the `running` requests, by slot, the oldest first.

    Prompts are cut at multiples of `CHUNK`, whatever else the pass has to do: other pieces may
    round otherwise, and a request's output must not depend on what runs beside it. Finished
    canvases are encoded at once. About `budget` tokens of prompts are encoded, and at least one
    chunk: a long prompt takes several passes, and delays no other request.
    """
    plan, prompts = PassPlan(), 0
    for slot, sequence in sorted(running.items(), key=lambda one: not one[1].tokens):
        if not sequence.ready:
            continue
        encoded = cache.length(slot)
        rest = sequence.unencoded(encoded)
        chunk = rest[: CHUNK - encoded % CHUNK if encoded < len(sequence.prompt) else CHUNK]
        if chunk and not sequence.tokens:
            if prompts and prompts + len(chunk) > budget:
                continue
            prompts += len(chunk)
        if chunk:
            plan.encode[slot] = chunk
        if len(chunk) == len(rest):
            plan.canvases[slot] = sequence
    return plan
