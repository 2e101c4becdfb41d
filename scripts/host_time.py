"""Measurement of the host's part of a pass, by a model that takes no time (`bench.py --host`)."""

import statistics
import time
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import torch
from throughput import Numbers
from torch import Tensor
from weightless import Weightless

import dlm
from dlm.engine import BUILT_IN
from dlm.events import Finished
from dlm.kernels.vocab_rows import VocabPass
from dlm.logits.canvas_logits import CANDIDATES

LENGTH, SIZE = 256, 262_144  # of a canvas, and of the vocabulary
_LISTED = 32  # tokens that an unsure row has in mind; every other row is sure
_TOKEN = 100_000  # which ends nothing
_STEPS, _WARM = 60, 10


class Instant(Weightless):
    """A denoiser that gives every canvas the same logits, at once: none ever settles."""

    def __init__(self) -> None:
        super().__init__(SIZE, LENGTH)
        self._logits = torch.zeros(1).expand(SIZE)

    def denoise(
        self, canvas: Tensor, soft_embedding: Any, cache: Any, slots: Sequence[int], encode: Any
    ) -> Tensor:
        self.encode(list(encode.values()), cache, list(encode))
        return self._logits.expand(len(slots), LENGTH, SIZE)


def found(rows: int) -> VocabPass:
    """Return what a vocabulary pass finds if every other row is sure of its token."""
    made = VocabPass.certain(torch.full((rows,), _TOKEN), CANDIDATES)
    made.above[::2], made.entropy[::2] = _LISTED, 1.0
    made.ids[::2, :_LISTED] = torch.arange(_LISTED, dtype=torch.int32)
    made.logits[::2, :_LISTED] = 1.0
    made.lse[::2] = 1.0 + torch.tensor(float(_LISTED)).log()
    return made


def host_milliseconds(slots: int) -> float:
    """Return the median of a pass over `slots` canvases without constraints."""
    made = found(slots * LENGTH)
    engine = dlm.Engine(Instant(), Numbers.load(BUILT_IN), slots=slots)
    for i in range(slots):
        engine.add(dlm.Request(token_ids=[1], max_tokens=4096, seed=i))
    taken = []
    with patch(
        "dlm.logits.distributions.vocab_pass",
        lambda *_, **__: VocabPass(*(x.clone() for x in made)),
    ):
        for _ in range(_WARM + _STEPS):
            begun = time.perf_counter()
            events = engine.step()
            taken.append(1e3 * (time.perf_counter() - begun))
            if any(isinstance(event, Finished) for event in events):
                raise RuntimeError("an answer ended: there was less to do than in a whole pass")
    engine.close()
    return statistics.median(taken[_WARM:])
