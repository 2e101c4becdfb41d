"""Passes one after another, so that the device works while the host thinks.

Where many canvases run, two groups of them take turns: while the model reads one, in a thread of
its own, the constraints of the other are asked. Weights are then read once for each group, which
costs nothing as soon as a group is bound by computing: about two canvases of 256 tokens on the
GPUs that this is meant for. Fewer canvases stay together.
"""

import sys
from collections.abc import Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from functools import partial

from dlm.class_table import ClassTable
from dlm.config import DecodeConfig
from dlm.denoise import Denoiser, Outcome, Reading, denoise, settle
from dlm.mask_table import MaskTable
from dlm.sequence import Sequence
from dlm.turn import Cache, Turn, turn_of

ALTERNATE = 4  # canvases from which there are two groups
_SWITCH = 0.0005  # seconds until a thread that computes lets another have the interpreter

Outcomes = Iterator[tuple[int, Outcome | Exception | None]]  # by slot


class Pipeline:
    """No pass is under way between two calls of `step`: caches and slots may be changed there."""

    def __init__(
        self,
        model: Denoiser,
        cache: Cache,
        config: DecodeConfig,
        encode_tokens: int,
        work: int,
        by_kernel: bool | None = None,
        alternate: int = ALTERNATE,
    ):
        """A pass encodes `encode_tokens` of prompts, constraints do `work` units in a step.
        `by_kernel` says whether a kernel reads logits; None: where they are on a GPU.
        From `alternate` canvases on, two groups take turns."""
        self._model, self._cache, self._config = model, cache, config
        self._encode_tokens, self._work, self._alternate = encode_tokens, work, alternate
        self.masks = MaskTable(-(-model.vocab_size // 32))
        more = {"config": config, "masks": self.masks, "by_kernel": by_kernel}
        more["classes"] = ClassTable()
        self._denoise = partial(denoise, model, cache, **more)
        self._reading: Reading | None = None  # of the group whose constraints are asked next
        self._device = futures.ThreadPoolExecutor(1, "dlm-device")
        self.idle = False  # the last step had nothing to do

    def step(self, running: Mapping[int, Sequence]) -> Outcomes:
        """One more pass for the requests that are `running`, by slot, or for half of them.

        Yields what became of the canvases that a pass is complete for, by slot, and then raises
        what the model raised, if it did. A question's is None, once its labels are summed.
        """
        yield from self._passed(running)
        yield from self._summed(running)

    def _passed(self, running: Mapping[int, Sequence]) -> Outcomes:
        before, self._reading = self._reading, None
        turn, whole = self._turn(running, before)
        self.idle = before is None and not turn
        if before is None:
            reading = self._denoise(turn=turn) if turn else None
            if whole and reading:
                yield from self._settled(reading, running)
            else:
                self._reading = reading
            return
        under_way = self._device.submit(self._denoise, turn=turn) if turn else None
        try:
            with _switching(_SWITCH):
                outcomes = list(self._settled(before, running))
        finally:
            futures.wait([under_way] if under_way else [])
        yield from outcomes
        self._reading = under_way.result() if under_way else None

    def close(self) -> None:
        self._device.shutdown()

    def _turn(self, running: Mapping[int, Sequence], before: Reading | None) -> tuple[Turn, bool]:
        """What the next pass does, and whether that is all there is to do."""
        ready = {slot: s for slot, s in running.items() if s.ready}
        several = len(ready) >= self._alternate
        if before and not several:
            return Turn(), True  # once these are settled, all go on together
        waiting = before.turn.canvases if before else {}
        free = [slot for slot, s in ready.items() if waiting.get(slot) is not s]
        some = free[: -(-len(ready) // 2)] if several else free
        turn = turn_of({slot: ready[slot] for slot in some}, self._cache, self._encode_tokens)
        return turn, len(some) == len(free)

    def _settled(self, reading: Reading, running: Mapping[int, Sequence]) -> Outcomes:
        """Of canvases whose requests have not been cancelled meanwhile."""
        canvases = reading.turn.canvases
        for slot, outcome in settle(self._model, reading, self._config, self._work).items():
            if running.get(slot) is canvases[slot]:
                yield slot, outcome

    def _summed(self, running: Mapping[int, Sequence]) -> Outcomes:
        """Sum up the labels of questions whose canvases have been read, who came first first: a
        step's work of it, and at most one position more."""
        work = self._work
        for slot, sequence in list(running.items()):
            asked = sequence.asked
            if asked is None or not asked.was_read:
                continue
            self.idle = False
            try:
                work = asked.sum(work)
            except Exception as error:
                yield slot, error
            else:
                if asked.ready:
                    yield slot, None


@contextmanager
def _switching(seconds: float) -> Iterator[None]:
    """A pass asks for the interpreter hundreds of times, for an instant each. Every time it would
    wait for Python's own 5 ms while constraints compute."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, seconds))
    try:
        yield
    finally:
        sys.setswitchinterval(before)
