"""Constrained algorithms of SGLang's masked diffusion models: LowConfidence, JointThreshold,
JointThresholdInDel.

They unmask sure positions, whose tokens then stand. JointThreshold's edit some that stand. Knows no
module of SGLang's.
"""

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from dlm.grammar import Fixed, Guidance
from dlm.integrations.sglang.algorithms import Block, Constrained
from dlm.integrations.unmasking import standing
from dlm.logits.guided import GuidedCanvas


class Masked(Constrained):
    """Constraints of an algorithm that unmasks positions."""

    def _is_finished(self, states: list[Any], row: int) -> bool:
        state = states[row]
        if _is_shared(state):
            return bool(state["finished"][row])
        return isinstance(state, dict) and bool(state["finished"])

    def _canvas(self, block: Block, ids: Sequence[int], states: list[Any]) -> GuidedCanvas:
        return GuidedCanvas(
            constraint=block.grammar,
            first=block.row * self.block_size + block.begin,
            length=self.block_size - block.begin,
            fixed=Fixed(held=standing(ids[block.begin :], self.mask_id)),
            masked=True,
            edit_threshold=getattr(self, "edit_threshold", None),
        )

    def _fit_(self, logits: Tensor, ids: list[list[int]], blocks: Sequence[Block]) -> None:
        """Add what JointThreshold is about to subtract from the token at the position before, since
        another token than the guess might become the likeliest."""
        penalty = getattr(self, "penalty_lambda", 0)
        if penalty <= 0:
            return
        for block in blocks:
            first = block.row * self.block_size
            positions = range(max(1, block.begin), self.block_size)
            rows = [first + position for position in positions]
            logits[rows, [ids[block.row][position - 1] for position in positions]] += penalty

    def _saved(self, states: list[Any], row: int) -> Any:
        return copy.deepcopy(states[row])

    def _put_back(self, states: list[Any], row: int, saved: Any) -> None:
        if _is_shared(states[row]):
            for name in ("finished", "post_edit_steps"):
                states[row][name][row] = saved[name][row]
        elif isinstance(states[row], dict):
            states[row].update(saved)

    def _goes_on(
        self,
        block: Block,
        guidance: Guidance,
        before: Sequence[int],
        ids: Tensor,
        after: Sequence[int],
        states: list[Any],
    ) -> bool:
        begin = block.begin
        changes = block.grammar.corrections.after(
            guidance, before[begin:], after[begin:], self.mask_id, self.settings.order
        )
        for position, token in changes.items():
            ids[block.row, begin + position] = token
        if changes:
            _go_on(states, block.row)
        return bool(changes)

    def _end(self, block: Block, before: Sequence[int], ids: Tensor, states: list[Any]) -> None:
        stop = block.grammar.stops[0]
        tokens = [stop if token == self.mask_id else token for token in before]
        ids[block.row] = ids.new_tensor(tokens)


def _go_on(states: list[Any], row: int) -> None:
    """Have SGLang's algorithm go on with a block that it has finished."""
    if _is_shared(states[row]):
        states[row]["finished"][row] = False
    elif isinstance(states[row], dict):
        states[row]["finished"] = False


def _is_shared(state: Any) -> bool:
    """Return whether a state is that of all blocks together."""
    return isinstance(state, dict) and "prompt_masks" in state
