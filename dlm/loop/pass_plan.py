"""Plan of a pass: what it encodes, and what it completes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dlm.loop.canvas_grid import CanvasGrid
from dlm.loop.interfaces import Cache
from dlm.models.image_tokens import piece_length
from dlm.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PassPlan:
    """Work of one pass, by slot. A canvas can be denoised, or a next token predicted, in the pass
    that encodes the last tokens before it."""

    encode: dict[int, list[int]] = field(default_factory=dict)  # tokens to append
    canvases: dict[int, Sequence] = field(default_factory=dict)  # encoded thereby
    questions: dict[int, Sequence] = field(default_factory=dict)  # all that run, read or not
    errors: dict[int, Exception] = field(default_factory=dict)  # of constraints, before the pass
    seconds: float = 0.0  # that constraints took before the pass

    @property
    def runs(self) -> bool:
        """Whether there is anything for the model to read."""
        return bool(self.encode or self.canvases)

    def __bool__(self) -> bool:
        summed = (s.question is not None and s.question.was_read for s in self.questions.values())
        return bool(self.runs or self.errors or any(summed))


def plan_pass(
    running: Mapping[int, Sequence], cache: Cache, budget: int, grid: CanvasGrid
) -> PassPlan:
    """Return what the next pass does for the `running` requests, by slot, the oldest first.

    Prompts are cut at multiples of `grid.chunk`, and not within images, whatever else the pass has
    to do: chunks of other sizes may round differently, and a request's output must not depend on
    what runs beside it. Finished canvases are encoded at once. About `budget` tokens of prompts are
    encoded, and at least one chunk: a long prompt takes several passes, and delays no other
    request.
    """
    plan, prompts = PassPlan(), 0
    for slot, sequence in sorted(running.items(), key=lambda item: not item[1].tokens):
        if not sequence.ready:
            continue
        encoded = cache.length(slot)
        unencoded = sequence.unencoded(encoded)
        unencoded = unencoded[: grid.encodable(encoded + len(unencoded)) - encoded]
        most = grid.chunk
        room = most - encoded % most if encoded < len(sequence.prompt) else most
        chunk = unencoded[: grid.encodable(piece_length(unencoded, room))]
        if chunk and not sequence.tokens:
            if prompts and prompts + len(chunk) > budget:
                continue
            prompts += len(chunk)
        if chunk:
            plan.encode[slot] = chunk
        if len(chunk) == len(unencoded):
            plan.canvases[slot] = sequence
    return plan
