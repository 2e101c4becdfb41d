"""Algorithms of SGLang's diffusion models, on logits that are rewritten by the grammars.

`step` is SGLang's one place between a pass of the model and what its algorithm does with the
logits. A subclass rewrites the rows of constrained blocks there (`LogitsGuide`), and SGLang's own
rule decides what is sure. Blocks of requests without a constraint are untouched. What differs
between samplers of masks and of noise is in `masked` and `noise`.

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

from dlm.grammar import Guidance, Unfinished
from dlm.integrations.sglang.grammar import RequestGrammar
from dlm.integrations.sglang.settings import PluginSettings
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


@dataclass(frozen=True, slots=True)
class Block:
    """A constrained block in a step."""

    row: int  # of the batch
    begin: int  # the first position that is not of the prompt or of an earlier block
    grammar: RequestGrammar


class _Unconstrained:
    """A request as SGLang's own algorithm is to judge it: without its constraint."""

    def __init__(self, req: Any):
        self._req = req
        self.sampling_params = copy.copy(req.sampling_params)
        for name in CONSTRAINTS:
            setattr(self.sampling_params, name, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._req, name)


class Constrained:
    """Part of an algorithm that applies the constraints; SGLang's own class comes after it."""

    settings: PluginSettings
    block_size: int
    mask_id: int

    @classmethod
    def of(cls, base: type, settings: PluginSettings) -> type:
        """Return SGLang's algorithm `base` with constraints, under the same name."""
        members = {"__module__": __name__, "settings": settings}
        return type(base.__name__, (cls, base), members)

    @classmethod
    def validate_request(cls, req: Any) -> str | None:
        """Return why a request is refused, or None. SGLang asks before it compiles anything."""
        params = req.sampling_params
        if any(getattr(params, name, None) is not None for name in CONSTRAINTS):
            for name, reason in _UNSUPPORTED.items():
                if getattr(params, name, None):
                    return f"{name} beside a constraint is not supported: {reason}"
            req = _Unconstrained(req)
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
        blocks = [block for block in blocks if not self._is_finished(states, block.row)]
        if not blocks:
            return own.step(forward_batch, full_logits, states)  # pyright: ignore[reportAttributeAccessIssue]
        ids = forward_batch.input_ids.view(-1, self.block_size)
        before = ids.tolist()
        results = self._guided(full_logits.view(ids.numel(), -1), before, blocks, states)
        states_before = {
            block.row: self._saved(states, block.row)
            for block, result in zip(blocks, results, strict=True)
            if isinstance(result, Unfinished)
        }
        done = own.step(forward_batch, full_logits, states)  # pyright: ignore[reportAttributeAccessIssue]
        after = ids.tolist()
        for block, result in zip(blocks, results, strict=True):
            row = block.row
            if isinstance(result, Unfinished):
                ids[row] = ids.new_tensor(before[row])
                self._put_back(states, row, states_before[row])
                done[row] = False
                continue
            if isinstance(result, Guidance):
                try:
                    goes_on = self._goes_on(block, result, before[row], ids, after[row], states)
                except Exception as error:
                    block.grammar.fail(error)
                else:
                    done[row] = done[row] and not goes_on
            else:
                block.grammar.fail(result)
            if block.grammar.error is not None:
                _LOG.info("dlm: a request is ended: %s", block.grammar.error)
                self._end(block, before[row], ids, states)
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
        self,
        logits: Tensor,
        ids: list[list[int]],
        blocks: Sequence[Block],
        states: list[Any],
    ) -> Sequence[Guidance | Exception]:
        """Rewrite the logits of `blocks`, whose tokens are in `ids`. Returns the guidance of each
        block, or why it has none."""
        try:
            guide = getattr(self, "_guide", None)
            if guide is None:
                guide = self._guide = LogitsGuide(logits.shape[1], self.settings.step_work)
            canvases = [self._canvas(block, ids[block.row], states) for block in blocks]
            results = guide.guide_(logits, canvases)
            self._fit_(logits, ids, blocks)
        except Exception as error:
            return [error] * len(blocks)
        return results

    def _is_finished(self, states: list[Any], row: int) -> bool:
        """Return whether SGLang's algorithm takes nothing more in a block, while it waits for
        others."""
        raise NotImplementedError

    def _canvas(self, block: Block, ids: Sequence[int], states: list[Any]) -> GuidedCanvas:
        """Return a block as the guide reads it, whose tokens are `ids`."""
        raise NotImplementedError

    def _fit_(self, logits: Tensor, ids: list[list[int]], blocks: Sequence[Block]) -> None:
        """Fit the rewritten logits of `blocks`, whose tokens are in `ids`, to what SGLang's
        algorithm does with them."""
        raise NotImplementedError

    def _saved(self, states: list[Any], row: int) -> Any:
        """Return a copy of a block's state, for `_put_back`."""
        raise NotImplementedError

    def _put_back(self, states: list[Any], row: int, saved: Any) -> None:
        """Put the state of one block back."""
        raise NotImplementedError

    def _goes_on(
        self,
        block: Block,
        guidance: Guidance,
        before: Sequence[int],
        ids: Tensor,
        after: Sequence[int],
        states: list[Any],
    ) -> bool:
        """Correct in `ids` what SGLang's step made of a block, which took it from the tokens
        `before` to those `after`. Returns whether it is not finished, whatever SGLang says."""
        raise NotImplementedError

    def _end(self, block: Block, before: Sequence[int], ids: Tensor, states: list[Any]) -> None:
        """Fill the block of a request that failed with a stop, so that SGLang emits it."""
        raise NotImplementedError
