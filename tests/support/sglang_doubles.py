"""Doubles of SGLang's algorithms, which decide as its own do on the same logits.

Whether they do is tested in the environment of SGLang.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_POST_EDITS = 16  # passes that may edit a block after its last mask


class Algorithm:
    requires_separate_context_encoding = False

    def __init__(self, block_size: int, mask_id: int, fdfo: bool = False):
        self.block_size, self.mask_id, self.fdfo = block_size, mask_id, fdfo

    @classmethod
    def validate_request(cls, req: Any) -> str | None:
        return None

    def init_step_state(self, forward_batch: Any) -> list[Any]:
        return [None] * forward_batch.batch_size

    def prepare_inputs(self, model_runner: Any, forward_batch: Any, states: list[Any]) -> None:
        """Do nothing: masks are in the batch."""

    def max_steps(self, block_size: int) -> int:
        return block_size + 1

    def run(self, runner: Any, batch: Any, states: Sequence[Any] | None = None) -> Any:
        """Run all passes of a batch's blocks, or one pass if the first done is the first out."""
        fresh = self.init_step_state(batch)
        carried = [
            old or new for old, new in zip(states or [None] * len(fresh), fresh, strict=True)
        ]
        for _ in range(1 if self.fdfo else self.max_steps(self.block_size)):
            self.prepare_inputs(runner, batch, carried)
            logits = runner.forward(batch).logits_output.full_logits
            done = self.step(batch, logits, carried)
            if all(done):
                break
        ids = batch.input_ids.view(-1, self.block_size).tolist()
        accepted = [self.block_size if d else 0 for d in done]
        kept = [None if d else state for d, state in zip(done, carried, strict=True)]
        return None, ids, accepted, kept, False

    def step(self, forward_batch: Any, full_logits: Tensor, states: list[Any]) -> list[bool]:
        blocks = forward_batch.input_ids.view(-1, self.block_size)
        logits = full_logits.view(*blocks.shape, -1)
        return [self.decide(*row) for row in zip(blocks, logits, states, strict=True)]

    def decide(self, ids: Tensor, logits: Tensor, state: Any) -> bool:
        """Advance one block in place; returns whether it is done."""
        raise NotImplementedError

    def unmasked(self, ids: Tensor, surest: Tensor, threshold: float) -> Tensor:
        """Return which masks are unmasked: those over the threshold, or the best one."""
        masks = ids == self.mask_id
        over = masks & (surest > threshold)
        if masks.any() and not over.any():
            over[torch.where(masks, surest, -1.0).argmax()] = True
        return over


class LowConfidence(Algorithm):
    def decide(self, ids: Tensor, logits: Tensor, state: Any) -> bool:
        if not (ids == self.mask_id).any():
            return True
        surest, tokens = logits.softmax(-1).max(-1)
        over = self.unmasked(ids, surest, 0.95)
        ids[over] = tokens[over]
        return False


class JointThreshold(Algorithm):
    edit_threshold = 0.0

    def max_steps(self, block_size: int) -> int:
        return block_size + _POST_EDITS + 1

    def init_step_state(self, forward_batch: Any) -> list[Any]:
        prompts = forward_batch.input_ids.view(-1, self.block_size) != self.mask_id
        return [{"finished": False, "post_edit_steps": 0, "prompt": row} for row in prompts]

    def decide(self, ids: Tensor, logits: Tensor, state: Any) -> bool:
        if state["finished"]:
            return True
        surest, tokens = logits.softmax(-1).max(-1)
        masks = ids == self.mask_id
        if not masks.any():
            state["post_edit_steps"] += 1
            if state["post_edit_steps"] > _POST_EDITS:
                state["finished"] = True
                return True
        edited = ~masks & ~state["prompt"] & (tokens != ids) & (surest > self.edit_threshold)
        changed = self.unmasked(ids, surest, 0.5) | edited
        ids[changed] = tokens[changed]
        state["finished"] = not bool(changed.any())
        return state["finished"]


class Gemma4Renoise(Algorithm):
    requires_separate_context_encoding = True
    max_denoising_steps, entropy_bound, confidence = 12, 0.1, 0.005

    def run(self, runner: Any, batch: Any, states: Sequence[Any] | None = None) -> Any:
        self.vocab_size = runner.model_config.hf_config.text_config.vocab_size
        return super().run(runner, batch, states)

    def max_steps(self, block_size: int) -> int:
        return self.max_denoising_steps

    def init_step_state(self, forward_batch: Any) -> list[Any]:
        states = []
        for rid in forward_batch.rids:
            generator = torch.Generator()
            digest = hashlib.blake2b(rid.encode(), digest_size=8).digest()
            generator.manual_seed(int.from_bytes(digest, "little"))
            noise = self._noise(generator)
            states.append(
                {
                    "step": self.max_denoising_steps,
                    "current": noise,
                    "argmax": noise,
                    "history": [],
                    "self_conditioning": None,
                    "generator": generator,
                    "finished": False,
                }
            )
        return states

    def prepare_inputs(self, model_runner: Any, forward_batch: Any, states: list[Any]) -> None:
        forward_batch.input_ids.copy_(torch.cat([state["current"] for state in states]))

    def decide(self, ids: Tensor, logits: Tensor, state: Any) -> bool:
        if not state["finished"]:
            share = state["step"] / self.max_denoising_steps
            log_p = (logits / (0.4 + 0.4 * share)).log_softmax(-1)
            entropy = -(log_p * log_p.exp()).sum(-1)
            order = entropy.argsort()
            spent = entropy[order].cumsum(0) - entropy[order]
            surest = torch.zeros(len(ids), dtype=torch.bool)
            surest[order] = spent <= self.entropy_bound
            race = torch.empty_like(log_p).exponential_(1.0, generator=state["generator"])
            drawn, noise = (log_p.exp() / race).argmax(-1), self._noise(state["generator"])
            guess = logits.argmax(-1)
            stable = [guess.tolist()] == state["history"]
            state["history"] = [guess.tolist()]
            state["step"] -= 1
            settled = stable and bool(entropy.mean() < self.confidence)
            state["finished"] = settled or state["step"] == 0
            state["argmax"] = guess
            state["current"] = guess if state["finished"] else torch.where(surest, drawn, noise)
        ids.copy_(state["current"])
        return state["finished"]

    def _noise(self, generator: torch.Generator) -> Tensor:
        return torch.randint(self.vocab_size, (self.block_size,), generator=generator)
