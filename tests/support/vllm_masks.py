"""vLLM's sampler for canvases of masks as far as the plugin sees it, and the worker around it.

It was written from what vLLM's model of Nemotron-Labs-Diffusion does: a canvas of masks is unmasked
by a policy, its tokens stand, and the pass after its last one emits it. All requests of a step draw
from one generator.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, log
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm_double import batch_of
from weightless import Noise, Weightless

from dlm.grammar import Compiler
from dlm.integrations.unmasking import Order
from dlm.integrations.vllm.masked import MaskedSampler
from dlm.integrations.vllm.payload import KEY, Payload
from dlm.integrations.vllm.scheduler import has_failed, restore_stop
from dlm.integrations.vllm.slots import Slots
from dlm.logits.guided import LogitsGuide
from dlm.policy import Policy

POLICIES = "confidence_threshold", "low_confidence", "leftmost"
PROMPT = 3  # tokens
MASK = 4


class MaskStates:
    """Request states with vLLM's names."""

    def __init__(self, slots: int, length: int, steps: int, mask: int):
        self.canvas_length, self.mask_token_id, self.max_denoising_steps = length, mask, steps
        self.is_encoder_phase = torch.zeros(slots, dtype=torch.bool)
        self.canvas = torch.full((slots, length), mask)
        self.step = torch.zeros(slots, dtype=torch.int32)
        self.unmask_logprobs = torch.zeros(slots, length)
        self.unmask_ranks = torch.zeros(slots, length, dtype=torch.int32)

    def add_request(self, slot: int) -> None:
        self.is_encoder_phase[slot], self.step[slot] = True, 0
        self.canvas[slot] = self.mask_token_id
        self.unmask_logprobs[slot], self.unmask_ranks[slot] = 0, 0

    def remove_request(self, slot: int) -> None:
        self.is_encoder_phase[slot] = False


class MaskSampler:
    """The inner sampler; `temperatures` are those of the slots."""

    def __init__(self, states: MaskStates, policy: str = POLICIES[0], threshold: float = 0.9):
        self.states, self.policy, self.threshold = states, policy, log(threshold)
        slots, length = states.canvas.shape
        self.temperatures = torch.zeros(slots)
        drafts = torch.zeros(slots, length + 2, dtype=torch.int64)  # vLLM's may be wider
        self.req_states = SimpleNamespace(draft_tokens=drafts)

    def __call__(self, logits: Tensor, batch: SimpleNamespace) -> SimpleNamespace:
        states, L = self.states, self.states.canvas_length
        output = SimpleNamespace(
            sampled_token_ids=torch.zeros(batch.num_reqs, L, dtype=torch.int32),
            num_sampled=torch.zeros(batch.num_reqs, dtype=torch.int32),
        )
        slots, starts = batch.idx_mapping_np.tolist(), batch.cu_num_logits_np.tolist()
        scores = logits.float().clone()
        scores[:, states.mask_token_id] = -torch.inf
        noise = torch.zeros(())
        if self.temperatures[slots].any():
            noise = -(-torch.rand_like(scores).clamp_min(1e-20).log()).log()
        for number, (slot, first, end) in enumerate(zip(slots, starts, starts[1:], strict=False)):
            if first == end:
                self._begin(slot)
            elif states.is_encoder_phase[slot]:
                tokens = states.canvas[slot, : end - first]
                masks = (tokens == states.mask_token_id).nonzero().flatten().tolist()
                count = masks[0] if masks else len(tokens)
                output.sampled_token_ids[number, : len(tokens)] = tokens
                output.num_sampled[number] = count
                self._begin(slot)
            else:
                drawn = noise[first:end] if noise.dim() else noise
                heated = scores[first:end] + self.temperatures[slot] * drawn
                self._denoise(slot, scores[first:end], heated.argmax(-1))
            self.req_states.draft_tokens[slot, :L] = states.canvas[slot]
        return output

    def _begin(self, slot: int) -> None:
        self.states.canvas[slot] = self.states.mask_token_id
        self.states.is_encoder_phase[slot], self.states.step[slot] = False, 0

    def _denoise(self, slot: int, scores: Tensor, tokens: Tensor) -> None:
        states, count = self.states, len(tokens)
        canvas = states.canvas[slot, :count]
        masks = (canvas == states.mask_token_id).nonzero().flatten().tolist()
        sureness = scores.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
        left = max(1, states.max_denoising_steps - int(states.step[slot]))
        shown = self._shown(masks, sureness.tolist(), left)
        canvas[shown] = tokens[shown]
        states.unmask_logprobs[slot, shown] = sureness[shown]
        states.unmask_ranks[slot, shown] = 1
        states.step[slot] += 1
        done = states.step[slot] >= states.max_denoising_steps
        states.is_encoder_phase[slot] = bool(done) or len(shown) == len(masks)

    def _shown(self, masks: list[int], sureness: list[float], left: int) -> list[int]:
        """Return those of `masks` that are unmasked in a pass; `left` passes are left with it."""
        surest = sorted(masks, key=lambda position: (-sureness[position], position))
        if self.policy == "confidence_threshold":
            sure = [p for p in masks if sureness[p] >= self.threshold or left == 1]
            return sorted({*sure, *surest[:1]})
        ranked = masks if self.policy == "leftmost" else surest
        return sorted(ranked[: ceil(len(masks) / left)])


@dataclass(kw_only=True)
class MaskRequest:
    """A request, and what has become of it."""

    key: int
    budget: int
    payload: Payload | None = None  # None: it is free
    temperature: float = 0.0
    output: list[int] = field(default_factory=list)
    reason: str = ""  # why it has ended; empty: it has not

    @property
    def scheduled(self) -> Any:
        """The request as vLLM's scheduler has it."""
        extra_args = None if self.payload is None else {KEY: self.payload.data()}
        return SimpleNamespace(sampling_params=SimpleNamespace(extra_args=extra_args))


class MaskWorker:
    """vLLM's worker and scheduler: requests by slots, each step a batch of all that go on."""

    def __init__(
        self,
        sampler: Any,
        states: MaskStates,
        model: Weightless,
        stops: tuple[int, ...],
        context: int = 1 << 20,
        slots: Any = None,
    ):
        """`context` bounds the tokens of a prompt and its answer; `slots` are the plugin's."""
        self.sampler, self.states, self.model = sampler, states, model
        self.stops, self.context, self.slots = stops, context, slots
        self.requests: dict[int, MaskRequest] = {}
        self.passes = 0

    def add(self, slot: int, request: MaskRequest) -> None:
        self.requests[slot] = request
        self.states.add_request(slot)
        self.sampler.temperatures[slot] = request.temperature
        if request.payload is not None and self.slots is not None:
            budget = min(request.budget, self.context - PROMPT)
            self.slots.add(slot, request.payload, budget, list(request.output), str(request.key))
        self.sampler(torch.zeros(0, self.model.size), batch_of({slot: 0}))  # its prompt is encoded

    def run(self, most: int = 4000) -> None:
        while any(not request.reason for request in self.requests.values()):
            self.step()
            assert self.passes < most, "an answer does not end"

    def step(self) -> None:
        self.passes += 1
        going = {slot: one for slot, one in self.requests.items() if not one.reason}
        lengths = {slot: self._length(request) for slot, request in going.items()}
        rows = [row for slot, one in going.items() for row in self._rows(slot, one, lengths[slot])]
        logits = torch.from_numpy(np.stack(rows)).float()
        output = self.sampler(logits, batch_of(lengths))
        for number, request in enumerate(going.values()):
            count = int(output.num_sampled[number])
            self._take(request, output.sampled_token_ids[number, :count].tolist())
            if request.reason and self.slots is not None:
                self.slots.remove([*going][number])

    def _length(self, request: MaskRequest) -> int:
        return min(self.states.canvas_length, self.context - PROMPT - len(request.output))

    def _rows(self, slot: int, request: MaskRequest, length: int) -> list[np.ndarray]:
        written, holes, rows = list(request.output), 0, []
        for position, token in enumerate(self.states.canvas[slot, :length].tolist()):
            at = len(request.output) + position
            rows.append(self.model.row(request.key, at, holes, written))
            holes += token == self.states.mask_token_id
            if not holes:
                written.append(token)
        return rows

    def _take(self, request: MaskRequest, tokens: list[int]) -> None:
        """Add what a step emits to an answer, as the scheduler with the plugin's wrappers does."""
        scheduled = request.scheduled
        if tokens and has_failed(scheduled, tokens):
            request.reason = "error"
            return
        squeezed = restore_stop(scheduled, tokens)
        for token in tokens:
            request.output.append(token)
            if token in self.stops:
                request.reason = "length" if squeezed else "stop"
                return
            if len(request.output) >= min(request.budget, self.context - PROMPT):
                request.reason = "length"
                return


class LikingMasks:
    """Models that each take their keys in turn, and like masks best; by default one is sure of
    garbage, and one unsure of everything."""

    def __init__(self, mask: int, size: int, *models: Weightless):
        self.size, self._mask = size, mask
        self._models = models or (Noise(size, 12.0), Noise(size, 1.0))

    def row(self, key: int, position: int, holes: int, written: Sequence[int]) -> np.ndarray:
        row = self._models[key % len(self._models)].row(key, position, holes, written)
        row[self._mask] = row.max() + 20
        return row


def worker_of(
    compiler: Compiler,
    count: int,
    *,
    policy: str = POLICIES[0],
    L: int = 16,
    steps: int | None = None,
    order: Order = "joint",
    model: Weightless | None = None,
    work: int = 10**6,
    plugin: bool = True,
    context: int = 1 << 20,
    guide: Any = None,
) -> MaskWorker:
    """Return a worker of `count` slots with canvases of `L` masks, around the plugin's sampler."""
    vocabulary = compiler.vocabulary
    size = len(vocabulary)
    states = MaskStates(count, L, steps or L, MASK)
    sampler: Any = MaskSampler(states, policy)
    slots = None
    if plugin:
        slots = Slots(compiler, Policy(max_unfinished_steps=50))
        sampler = MaskedSampler(sampler, states, slots, guide or LogitsGuide(size, work), order)
    liking = model or LikingMasks(MASK, size)
    return MaskWorker(sampler, states, liking, vocabulary.stops, context, slots)
