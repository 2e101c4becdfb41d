"""Passes of a causal model: each reads what its requests have written, and says what comes next.

A request's draft, where it has one, is judged by the same pass: of its tokens those are kept that
would have been written anyway, one by one. Knows no text and no queue.
"""

from collections import abc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from dlm.decoding import Model, Parts
from dlm.errors import DlmError
from dlm.grammar import Look
from dlm.grammar.common import common
from dlm.link import Link
from dlm.pick import pick
from dlm.sequence import Sequence
from dlm.turn import CHUNK, Turn, turn_of


@runtime_checkable
class CausalLM(Model, Protocol):
    """A model that predicts the next token; `DiffusionGemma` is one, by its encoder."""

    def predict(
        self,
        tokens: Mapping[int, abc.Sequence[int]],
        last: Mapping[int, int],
        cache: Any,
    ) -> Float[Tensor, "n V"]:
        """Append `tokens[slot]` to each slot. Returns the logits, before the softcap, of what comes
        behind each of the last `last[slot]` of them, slot by slot in the order of `last`."""
        ...


@dataclass(frozen=True, slots=True)
class Written:
    """What a pass wrote of one request."""

    tokens: list[int]
    drafted: int  # of them, those that a draft had


class CausalPasses:
    """All that run take part in every pass: none waits for another."""

    def __init__(self, parts: Parts, temperature: float):
        """At a temperature of 0 the likeliest token is written."""
        self._model: CausalLM = parts.model
        self._cache, self._policy, self._by_kernel = parts.cache, parts.policy, parts.by_kernel
        self._temperature = temperature
        self.idle = False

    def step(self, running: Mapping[int, Sequence]) -> Iterator[tuple[int, Written | Exception]]:
        ready = {slot: s for slot, s in running.items() if s.ready}
        start, failed, looked = perf_counter(), dict[int, Exception](), dict[int, Sequence]()
        for slot, sequence in ready.items():
            try:
                self._look(sequence, max(1, self._policy.step_work // len(ready)))
                self._leave_some(slot, sequence)
                looked[slot] = sequence
            except Exception as error:
                failed[slot] = error
        turn = turn_of(looked, self._cache, self._policy.encode_tokens)
        self.idle = not turn and not failed
        guided = perf_counter() - start
        written = self._written(turn, guided) if turn else {}
        yield from failed.items()
        yield from written.items()

    def close(self) -> None:
        """Nothing is under way between two steps."""

    def _look(self, sequence: Sequence, work: int) -> None:
        """Ask the constraint what comes next, unless it has said so. What it leaves no choice about
        is written at once: the next pass reads it along with the rest."""
        writing = sequence.writing
        if writing.look is not None:
            return
        writing.constraint.work = work
        refused = sequence.refused and sequence.refused.get(tuple(sequence.tokens))
        look = writing.constraint.look(writing.draft, refused or ())
        writing.constraint.commit(look.forced)
        sequence.commit(look.forced)
        writing.look, writing.work = look, 0

    def _leave_some(self, slot: int, sequence: Sequence) -> None:
        """A pass says what comes behind the tokens that it reads: one is read again if it must."""
        all_ = len(sequence.prompt) + len(sequence.tokens)
        if self._cache.length(slot) == all_:
            self._cache.rewind(slot, all_ - 1)

    @torch.inference_mode()
    def _written(self, turn: Turn, guided: float) -> dict[int, Written | Exception]:
        """One pass: it encodes what `turn` says, and writes the requests that this completes."""
        start, link = perf_counter(), Link(self._model.device)
        looks = {
            slot: _cut(s.writing.look, len(turn.encode[slot])) for slot, s in turn.canvases.items()
        }
        tokens = {
            slot: some + looks[slot].draft if slot in looks else some
            for slot, some in turn.encode.items()
        }
        last = {slot: len(look.rows) for slot, look in looks.items()}
        logits = self._model.predict(tokens, last, self._cache)
        read = perf_counter()
        rows = [row for look in looks.values() for row in look.rows]
        uniform = [u for slot, s in turn.canvases.items() for u in self._uniform(s, last[slot])]
        more = self._temperature, self._model.softcap, link, self._by_kernel
        picks = iter(pick(logits, rows, uniform, *more))
        written: dict[int, Written | Exception] = {}
        for slot, sequence in turn.canvases.items():
            picked = list(islice(picks, last[slot]))
            written[slot] = self._judge(slot, sequence, looks[slot].draft, picked)
        for sequence in turn.canvases.values():
            sequence.stats.causal_calls += 1
            sequence.stats.copies += link.copies
            sequence.stats.spend(read - start, guided, perf_counter() - read)
        return written

    def _uniform(self, sequence: Sequence, count: int) -> list[float]:
        """The numbers that its next tokens are drawn by, if they are."""
        begin = len(sequence.tokens)
        if not self._temperature:
            return [0.0] * count
        return sequence.writing.uniform(sequence.rng, begin, begin + count)

    def _judge(
        self, slot: int, sequence: Sequence, draft: list[int], picks: list[int]
    ) -> Written | Exception:
        """Keep of a draft what was picked anyway, and the first pick that it did not have."""
        if min(picks) < 0:
            return DlmError("the model's logits leave no token that may come next")
        kept = common(draft, picks)
        if kept < len(draft):
            self._cache.rewind(slot, len(sequence.prompt) + len(sequence.tokens) + kept)
        sequence.writing.draft, sequence.writing.look = [], None
        return Written(picks[: kept + 1], kept)


def _cut(look: Look | None, encoded: int) -> Look:
    """What a pass looks at that encodes so many tokens of the request."""
    if look is None:
        raise ValueError("a pass needs the constraint's look")
    return (
        look if len(look.draft) + encoded <= CHUNK else replace(look, draft=[], rows=look.rows[:1])
    )
