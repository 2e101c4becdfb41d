"""Constrained algorithms of SGLang's masked diffusion models: LowConfidence, JointThreshold,
JointThresholdInDel.

They unmask sure positions, whose tokens then stand. JointThreshold's edit some that stand. Knows no
module of SGLang's.
"""

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from dlm.errors import DlmError
from dlm.grammar import Fixed, Guidance
from dlm.integrations.sglang.algorithms import Block, Constrained
from dlm.logits.guided import GuidedCanvas

_MASKED_AGAIN = 2  # passes in a row, for each position of a block, that unmask suspect positions


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
            fixed=Fixed(held=self._standing(ids, block.begin)),
            masked=True,
            edit_threshold=getattr(self, "edit_threshold", None),
        )

    def _standing(self, ids: Sequence[int], begin: int) -> dict[int, int]:
        """Return the tokens of a block that stand, by position from `begin` on."""
        return {p: token for p, token in enumerate(ids[begin:]) if token != self.mask_id}

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
        changes = self._changes(block, guidance, before, after)
        for position, token in changes.items():
            ids[block.row, position] = token
        if changes:
            _go_on(states, block.row)
        return bool(changes)

    def _changes(
        self, block: Block, guidance: Guidance, before: Sequence[int], after: Sequence[int]
    ) -> dict[int, int]:
        """Return what must change in a block after SGLang's step: tokens by position.

        A token that is not the guess is masked again; a request for which that goes on is failed.
        """
        if before == after:
            return {}
        misplaced = guidance.misplaced(self._standing(after, block.begin))
        grammar = block.grammar
        grammar.masked_again = grammar.masked_again + 1 if misplaced else 0
        if grammar.masked_again > _MASKED_AGAIN * self.block_size:
            grammar.fail(DlmError("the algorithm goes on to unmask positions that are suspect"))
        changes = {block.begin + position: self.mask_id for position in misplaced}
        if self.settings.order == "prefix":
            now = [changes.get(position, token) for position, token in enumerate(after)]
            changes |= self._left_to_right(block, guidance, before, now)
        return changes

    def _left_to_right(
        self, block: Block, guidance: Guidance, before: Sequence[int], after: Sequence[int]
    ) -> dict[int, int]:
        """Return the changes without which a token stands to the right of a mask: it is masked
        again. If no token is left, the first mask takes its guess."""
        masks = [p for p, token in enumerate(after) if token == self.mask_id and p >= block.begin]
        if not masks:
            return {}
        unmasked = [p for p in range(block.begin, len(after)) if before[p] == self.mask_id]
        later = [p for p in unmasked if p > masks[0] and after[p] != self.mask_id]
        changes = dict.fromkeys(later, self.mask_id)
        if masks[0] in unmasked[:1]:
            changes[masks[0]] = guidance.guess[masks[0] - block.begin]
        return changes

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
