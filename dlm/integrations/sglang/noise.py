"""Constrained algorithm of SGLang's DiffusionGemma: Gemma4Renoise.

It replaces unsure positions by noise, and emits the argmax of a canvas that is stable and
confident, or that has had its last pass. What is stuck is pinned, or taken back, as in our engine
(`Progress`). Knows no module of SGLang's.
"""

from collections.abc import Sequence
from functools import cached_property
from math import inf
from typing import Any

import torch
from torch import Tensor

from dlm.canvas import Progress
from dlm.config import DecodeConfig
from dlm.grammar import Fixed, Guidance
from dlm.integrations.sglang.algorithms import Block, Constrained
from dlm.logits.guided import GuidedCanvas
from dlm.request import Stats
from dlm.samplers import EntropyBound

_LEAST = -1e4  # logit of a token that is not allowed: its probability is 0
_PROGRESS = "dlm_progress"  # our key in SGLang's state of a canvas
_REPLACED = ("step", "current", "argmax", "self_conditioning", "finished")  # in a step


class Renoised(Constrained):
    """Constraints of an algorithm that noises canvases again."""

    max_denoising_steps: int

    @cached_property
    def _config(self) -> DecodeConfig:
        """When a canvas is stuck."""
        return DecodeConfig(sampler=EntropyBound(max_steps=self.max_denoising_steps))

    def _is_finished(self, states: list[Any], row: int) -> bool:
        return bool(states[row]["finished"])

    def _canvas(self, block: Block, ids: Sequence[int], states: list[Any]) -> GuidedCanvas:
        state = states[block.row]
        last = state["step"] == 1  # SGLang counts down, after this
        progress = state.setdefault(_PROGRESS, Progress(stats=Stats()))
        banned = {} if last else progress.banned
        return GuidedCanvas(
            constraint=block.grammar,
            first=block.row * self.block_size + block.begin,
            length=self.block_size - block.begin,
            fixed=Fixed(pinned=progress.pinned, banned=banned, last=last),
        )

    def _fit_(self, logits: Tensor, ids: list[list[int]], blocks: Sequence[Block]) -> None:
        """Make all logits finite: SGLang's entropy of a row with an infinite one is no number."""
        for block in blocks:
            first = block.row * self.block_size
            logits[first : first + self.block_size].clamp_(min=_LEAST)

    def _saved(self, states: list[Any], row: int) -> Any:
        state = states[row]
        replaced = {name: state[name] for name in _REPLACED}
        return replaced, list(state["history"]), state["generator"].get_state()

    def _put_back(self, states: list[Any], row: int, saved: Any) -> None:
        replaced, history, generator = saved
        states[row].update(replaced, history=history)
        states[row]["generator"].set_state(generator)

    def _goes_on(
        self,
        block: Block,
        guidance: Guidance,
        before: Sequence[int],
        ids: Tensor,
        after: Sequence[int],
        states: list[Any],
    ) -> bool:
        """A canvas that SGLang finds confident goes on while a part of it is suspect. On its last
        pass nothing is."""
        state = states[block.row]
        state[_PROGRESS].settle(guidance, inf, self._config)
        is_early = state["finished"] and state["step"] > 0
        if not is_early or guidance.suspect >= guidance.scored:
            return False
        state["finished"] = False
        return True

    def _end(self, block: Block, before: Sequence[int], ids: Tensor, states: list[Any]) -> None:
        stops = torch.full_like(ids[block.row], block.grammar.stops[0])
        ids[block.row] = stops
        states[block.row].update(current=stops, argmax=stops, finished=True)
