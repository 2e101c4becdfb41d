"""Passes one after another: the model reads all canvases that are ready, their constraints decide.

All canvases share a pass, since its weights are read once for all of them.
"""

from collections.abc import Iterator, Mapping
from functools import partial

from dlm.config import DecodeConfig
from dlm.denoise import Denoiser, Outcome, Reading, denoise, settle
from dlm.mask_table import MaskTable
from dlm.sequence import Sequence
from dlm.turn import Cache, turn_of

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
    ):
        """A pass encodes `encode_tokens` of prompts, constraints do `work` units in a step.
        `by_kernel` says whether a kernel reads logits; None: where they are on a GPU."""
        self._model, self._cache, self._config = model, cache, config
        self._encode_tokens, self._work = encode_tokens, work
        self.masks = MaskTable(-(-model.vocab_size // 32))
        more = {"config": config, "masks": self.masks, "by_kernel": by_kernel}
        self._denoise = partial(denoise, model, cache, **more)
        self.idle = False  # the last step had nothing to do

    def step(self, running: Mapping[int, Sequence]) -> Outcomes:
        """Do one more pass for the requests that are `running`, by slot.

        Yields what became of the canvases that the pass completes, by slot. A question's is None,
        once its labels are summed. Raises what the model raises.
        """
        turn = turn_of(running, self._cache, self._encode_tokens)
        self.idle = not turn
        reading = self._denoise(turn=turn) if turn else None
        if reading:
            yield from self._settled(reading, running)
        yield from self._summed(running)

    def _settled(self, reading: Reading, running: Mapping[int, Sequence]) -> Outcomes:
        """Ask the constraints of the canvases of a pass, and take these a step further."""
        yield from settle(self._model, reading, self._config, self._work).items()

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
