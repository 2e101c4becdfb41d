"""DiffusionGemma of vLLM with constraints: the same model with another state and sampler.

Only vLLM's own processes import this module.
"""

# pyright: reportMissingImports=false

from typing import Any

from vllm.model_executor.models.diffusion_gemma import (
    DiffusionGemmaForConditionalGeneration,
    DiffusionGemmaModelState,
)

from dlm.config import DecodeConfig
from dlm.integrations.vllm.noise import NoiseSampler
from dlm.integrations.vllm.own import GEMMA
from dlm.integrations.vllm.slots import Slots
from dlm.integrations.vllm.state import ConstrainedState
from dlm.samplers import EntropyBound


class ConstrainedModelState(ConstrainedState, DiffusionGemmaModelState):
    """State of DiffusionGemma's requests in a worker, their constraints included."""

    own = GEMMA

    def _sampler(self, inner: Any, slots: Slots, guide: Any) -> NoiseSampler:
        sampler = EntropyBound(max_steps=self.diffusion_states.max_denoising_steps)
        config = DecodeConfig(sampler=sampler)
        return NoiseSampler(inner, self.diffusion_states, slots, guide, config)


class ConstrainedDiffusionGemma(DiffusionGemmaForConditionalGeneration):
    """Model that is registered in place of vLLM's own."""

    @staticmethod
    def get_model_state_cls() -> type[ConstrainedModelState]:
        return ConstrainedModelState
