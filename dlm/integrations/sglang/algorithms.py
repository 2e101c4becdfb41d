"""Algorithms of SGLang's diffusion models, on logits that are rewritten by the grammars.

`step` is SGLang's one place between a pass of the model and what its algorithm does with the
logits. A subclass rewrites the rows of constrained blocks there (`LogitsGuide`), and SGLang's own
rule decides what is sure. Blocks of requests without a constraint are untouched.

Nothing here raises into SGLang, since that would end its scheduler. A request that fails is ended
by itself, with its reason. A block whose constraint needs another step's work is put back as it
was. Knows no module of SGLang's.
"""

import copy
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dlm.errors import DlmError
from dlm.grammar import Fixed, Guidance, Unfinished
from dlm.integrations.sglang import settings
from dlm.integrations.sglang.grammar import RequestGrammar
from dlm.logits.guided import GuidedCanvas, LogitsGuide
from dlm.policy import Policy

_LOG = logging.getLogger("sglang.dlm")
CONSTRAINTS = ("json_schema", "regex", "ebnf", "structural_tag")
_UNSUPPORTED = {  # sampling parameters beside a constraint: why not
    "ignore_eos": "the answer ends where its constraint does",
    "stop_strs": "a text that stops the answer would leave it incomplete",
    "stop_regex_strs": "a text that stops the answer would leave it incomplete",
    "stop_token_ids": "a token that stops the answer would leave it incomplete",
}
_MASKED_AGAIN = 2  # passes in a row, for each position of a block, that unmask suspect positions


@dataclass(frozen=True, slots=True)
class Block:
    """A constrained block in a step."""

    row: int  # of the batch
    begin: int  # the first position that is not of the prompt or of an earlier block
    grammar: RequestGrammar


def constrained(base: type) -> type:
    """Return SGLang's algorithm `base` with constraints, under the same name."""
    return type(base.__name__, (Constrained, base), {"__module__": __name__})


class Constrained:
    """Part of an algorithm that applies the constraints; SGLang's own class comes after it."""

    block_size: int
    mask_id: int

    @classmethod
    def validate_request(cls, req: Any) -> str | None:
        """Return why a request is refused, or None. SGLang asks before it compiles anything."""
        params = req.sampling_params
        if any(getattr(params, name, None) is not None for name in CONSTRAINTS):
            for name, reason in _UNSUPPORTED.items():
                if getattr(params, name, None):
                    return f"{name} beside a constraint is not supported: {reason}"
        return super().validate_request(req)  # pyright: ignore[reportAttributeAccessIssue]

    def max_steps(self, block_size: int) -> int:
        """Return the most passes of a block. Those in which it is held come on top: each takes a
        unit of work at least, and a grammar that takes more units than these fails."""
        own = super().max_steps(block_size)  # pyright: ignore[reportAttributeAccessIssue]
        policy = Policy()
        return own + policy.max_unfinished_steps * policy.step_work

    def step(self, forward_batch: Any, full_logits: Tensor, states: list[Any]) -> list[bool]:
        """Advance all blocks by one step of SGLang's algorithm; return which of them may emit."""
        own = super()
        blocks = self._blocks(forward_batch)
        blocks = [block for block in blocks if not _is_finished(states, block.row)]
        if not blocks:
            return own.step(forward_batch, full_logits, states)  # pyright: ignore[reportAttributeAccessIssue]
        ids = forward_batch.input_ids.view(-1, self.block_size)
        before = ids.tolist()
        results = self._guided(full_logits.view(ids.numel(), -1), before, blocks)
        states_before = {
            block.row: copy.deepcopy(states[block.row])
            for block, result in zip(blocks, results, strict=True)
            if isinstance(result, Unfinished)
        }
        done = own.step(forward_batch, full_logits, states)  # pyright: ignore[reportAttributeAccessIssue]
        after = ids.tolist()
        for block, result in zip(blocks, results, strict=True):
            row = block.row
            if isinstance(result, Unfinished):
                ids[row] = ids.new_tensor(before[row])
                _put_back(states, row, states_before[row])
                done[row] = False
                continue
            if isinstance(result, Guidance):
                try:
                    changes = self._changes(block, result, before[row], after[row])
                except Exception as error:
                    changes = {}
                    block.grammar.fail(error)
                for position, token in changes.items():
                    ids[row, position] = token
                if changes:
                    _go_on(states, row)
                    done[row] = False
            else:
                block.grammar.fail(result)
            if block.grammar.error is not None:
                _LOG.info("dlm: a request is ended: %s", block.grammar.error)
                end = block.grammar.stops[0]
                ids[row] = ids.new_tensor([end if t == self.mask_id else t for t in before[row]])
                done[row] = True
        return done

    def _blocks(self, forward_batch: Any) -> list[Block]:
        """Return the constrained blocks of a batch whose texts go on."""
        grammars = getattr(forward_batch.sampling_info, "grammars", None) or ()
        blocks = []
        for row, grammar in enumerate(grammars):
            if not isinstance(grammar, RequestGrammar) or grammar.error is not None:
                continue
            try:
                begin = grammar.position - int(forward_batch.extend_prefix_lens_cpu[row])
            except Exception as error:
                grammar.fail(error)
                continue
            if begin < self.block_size:  # otherwise it is a block of the prompt
                blocks.append(Block(row, max(0, begin), grammar))
        return blocks

    def _guided(
        self, logits: Tensor, ids: list[list[int]], blocks: Sequence[Block]
    ) -> Sequence[Guidance | Exception]:
        """Rewrite the logits of `blocks`, whose tokens are in `ids`. Returns the guidance of each
        block, or why it has none."""
        try:
            guide = getattr(self, "_guide", None)
            if guide is None:
                guide = self._guide = LogitsGuide(logits.shape[1], settings.step_work())
            results = guide.guide_(logits, [self._canvas(block, ids) for block in blocks])
            self._offset_penalty_(logits, ids, blocks)
        except Exception as error:
            return [error] * len(blocks)
        return results

    def _canvas(self, block: Block, ids: list[list[int]]) -> GuidedCanvas:
        return GuidedCanvas(
            constraint=block.grammar,
            first=block.row * self.block_size + block.begin,
            length=self.block_size - block.begin,
            fixed=Fixed(held=self._standing(ids[block.row], block.begin)),
            masked=True,
            edit_threshold=getattr(self, "edit_threshold", None),
        )

    def _standing(self, ids: Sequence[int], begin: int) -> dict[int, int]:
        """Return the tokens of a block that stand, by position from `begin` on."""
        return {p: token for p, token in enumerate(ids[begin:]) if token != self.mask_id}

    def _changes(
        self, block: Block, guidance: Guidance, before: Sequence[int], after: Sequence[int]
    ) -> dict[int, int]:
        """Return what must change in a block after SGLang's step, which took it from the tokens
        `before` to those `after`: tokens by position.

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
        if settings.order() == "prefix":
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

    def _offset_penalty_(
        self, logits: Tensor, ids: list[list[int]], blocks: Sequence[Block]
    ) -> None:
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


def _put_back(states: list[Any], row: int, before: Any) -> None:
    """Put the state of one block back."""
    if _is_shared(states[row]):
        for name in ("finished", "post_edit_steps"):
            states[row][name][row] = before[name][row]
    elif isinstance(states[row], dict):
        states[row].update(before)


def _go_on(states: list[Any], row: int) -> None:
    """Have SGLang's algorithm go on with a block that it has finished."""
    if _is_shared(states[row]):
        states[row]["finished"][row] = False
    elif isinstance(states[row], dict):
        states[row]["finished"] = False


def _is_finished(states: list[Any], row: int) -> bool:
    """Return whether SGLang's algorithm takes nothing more in a block, not even the guess's edits,
    while it waits for others."""
    state = states[row]
    if _is_shared(state):
        return bool(state["finished"][row])
    return isinstance(state, dict) and bool(state["finished"])


def _is_shared(state: Any) -> bool:
    """Return whether a state is that of all blocks together."""
    return isinstance(state, dict) and "prompt_masks" in state
