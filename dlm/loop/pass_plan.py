"""What one pass works on: tokens to encode and canvases to denoise.

Decided from what runs and what the cache holds of it, and from nothing else.
"""

from collections import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from dlm.models.pages import CHUNK
from dlm.sequence import Sequence


@runtime_checkable
class Cache(Protocol):
    """What the model remembers of each slot's committed tokens."""

    @property
    def capacity(self) -> int | None:
        """Tokens of all slots together; None: it grows."""
        ...

    @property
    def usage(self) -> float:
        """The share of its memory that is held; any thread may ask."""
        ...

    def length(self, slot: int) -> int: ...

    def fits(self, tokens: int) -> bool:
        """Whether a slot could reserve so many now."""
        ...

    def reserve(self, slot: int, tokens: int) -> None: ...

    def attach(self, slot: int, tokens: abc.Sequence[int]) -> int | None:
        """Begin a prompt in an empty slot; returns how many of its tokens are there already. None:
        others are about to encode a good part of it; ask again after the next pass."""
        ...

    def rewind(self, slot: int, length: int) -> int:
        """Keep the first `length` tokens, or fewer; returns how many."""
        ...

    def release(self, slot: int) -> None: ...


@dataclass(frozen=True, slots=True)
class PassPlan:
    """A canvas can be denoised, or a next token predicted, in the pass that encodes all that comes
    before it."""

    encode: dict[int, list[int]] = field(default_factory=dict)  # tokens to append, by slot
    canvases: dict[int, Sequence] = field(default_factory=dict)  # whose text it completes, by slot

    def __bool__(self) -> bool:
        return bool(self.encode or self.canvases)


def plan_pass(running: Mapping[int, Sequence], cache: Cache, budget: int) -> PassPlan:
    """What the next pass does for the requests that are `running`, by slot, the oldest first.

    Prompts are cut at multiples of `CHUNK`, whatever else the pass has to do: other pieces may
    round otherwise, and what runs beside a request must not show in its output. Finished canvases
    are encoded at once. Of prompts, about `budget` tokens are, and at least one chunk: a long
    prompt takes several passes, and holds up no one.
    """
    turn, prompts = PassPlan(), 0
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
            turn.encode[slot] = chunk
        if len(chunk) == len(rest):
            turn.canvases[slot] = sequence
    return turn
