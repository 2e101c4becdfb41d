"""vLLM's sampler for diffusion as far as the plugin sees it: canvases, steps, convergence, commits.

Each slot's canvas takes its argmax in every pass, converges at its last step or where it repeats
itself and is sure, and is emitted in the pass after that.
"""

from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor


class States:
    """Request states with vLLM's names."""

    def __init__(self, slots: int, length: int, steps: int):
        self.canvas = torch.zeros(slots, length, dtype=torch.int64)
        self.argmax_canvas = torch.zeros(slots, length, dtype=torch.int64)
        self.step = torch.zeros(slots, dtype=torch.int32)
        self.max_steps = torch.full((slots,), steps, dtype=torch.int32)
        self.is_encoder_phase = torch.zeros(slots, dtype=torch.bool)
        self.confident = torch.zeros(slots, dtype=torch.bool)
        self.accepted_canvas_history = torch.zeros(slots, 2, length, dtype=torch.int64)
        self.accepted_canvas_history_len = torch.zeros(slots, dtype=torch.int32)
        self.self_conditioning_embeds = torch.zeros(slots, length, 1)

    def add_request(self, slot: int) -> None:
        self.is_encoder_phase[slot], self.step[slot] = True, 0

    def remove_request(self, slot: int) -> None:
        self.is_encoder_phase[slot] = False


class Sampler:
    """The inner sampler; `emitted` are the tokens of each slot so far."""

    def __init__(self, states: States):
        self.states, self.seen = states, list[Tensor]()
        self.emitted: dict[int, list[int]] = {}
        draft_tokens = torch.zeros_like(states.canvas)
        self.req_states = SimpleNamespace(draft_tokens=draft_tokens)

    def __call__(self, logits: Tensor, batch: SimpleNamespace) -> SimpleNamespace:
        self.seen.append(logits)
        output = SimpleNamespace(
            sampled_token_ids=torch.zeros(batch.num_reqs, self.states.canvas.shape[1]).long(),
            num_sampled=torch.zeros(batch.num_reqs).long(),
        )
        states, starts = self.states, batch.cu_num_logits_np.tolist()
        for number, (slot, first, end) in enumerate(
            zip(batch.idx_mapping_np.tolist(), starts, starts[1:], strict=False)
        ):
            if first == end:
                continue
            if states.is_encoder_phase[slot]:
                tokens = states.argmax_canvas[slot, : end - first].tolist()
                self.emitted.setdefault(slot, []).extend(tokens)
                output.sampled_token_ids[number, : len(tokens)] = torch.tensor(tokens)
                output.num_sampled[number] = len(tokens)
                states.is_encoder_phase[slot], states.step[slot] = False, 0
                states.accepted_canvas_history_len[slot] = 0
                continue
            rows = logits[first:end]
            tokens = rows.argmax(-1)
            before = states.argmax_canvas[slot, : end - first].clone()
            states.argmax_canvas[slot, : end - first] = tokens
            states.canvas[slot] += 1
            self.req_states.draft_tokens[slot] = states.canvas[slot]
            states.step[slot] += 1
            states.accepted_canvas_history_len[slot] += 1
            x = rows.double().log_softmax(-1)
            entropy = -(x.exp() * x.nan_to_num(neginf=0)).sum(-1).mean()
            stable = states.accepted_canvas_history_len[slot] > 1 and torch.equal(before, tokens)
            done = states.step[slot] >= states.max_steps[slot]
            states.is_encoder_phase[slot] = bool((stable and entropy < 0.02) or done)
        return output


def batch_of(lengths: dict[int, int]) -> SimpleNamespace:
    """A step's batch: slots, and how many rows of logits each has; 0: its prompt is encoded."""
    return SimpleNamespace(
        num_reqs=len(lengths),
        num_draft_tokens=sum(lengths.values()),
        idx_mapping_np=np.array(list(lengths), dtype=np.int32),
        cu_num_logits_np=np.cumsum([0, *lengths.values()]).astype(np.int32),
    )
