"""DiffusionGemma of vLLM with constraints: the same model with another state and sampler.

Only vLLM's own processes import this module.
"""

# pyright: reportMissingImports=false

import logging
from typing import Any

import torch
from vllm.model_executor.models.diffusion_gemma import (
    DiffusionGemmaForConditionalGeneration,
    DiffusionGemmaModelState,
)
from vllm.tokenizers import cached_tokenizer_from_config

from dlm.config import DecodeConfig
from dlm.grammar import Compiler
from dlm.integrations.vllm.admission import vocabulary_of
from dlm.integrations.vllm.payload import Payload
from dlm.integrations.vllm.sampler import ConstrainedSampler, Slots
from dlm.logits.guided import LogitsGuide
from dlm.policy import Policy

_LOG = logging.getLogger("vllm.dlm")


class ConstrainedModelState(DiffusionGemmaModelState):
    """State of requests in a worker, their constraints included."""

    def __init__(
        self, vllm_config: Any, model: torch.nn.Module, encoder_cache: Any, device: torch.device
    ):
        super().__init__(vllm_config, model, encoder_cache, device)
        self._slots: Slots | None = None
        try:
            tokenizer = cached_tokenizer_from_config(model_config=self.model_config)
            compiler = Compiler(vocabulary_of(self.model_config, tokenizer))
        except Exception:
            _LOG.exception("dlm: constraints are not served")  # the front end refuses them, too
        else:
            config = DecodeConfig(max_steps=self.diffusion_states.max_denoising_steps)
            self._slots = Slots(compiler, Policy(), config)

    def custom_sampler(self, sampler: Any) -> tuple[Any, Any] | None:
        made = super().custom_sampler(sampler)
        if made is None or self._slots is None:
            return made
        guide = LogitsGuide(self.model_config.get_vocab_size(), self._slots.policy.step_work)
        guide.warm_up(self.device)
        inner, rejection = made
        return ConstrainedSampler(inner, self.diffusion_states, self._slots, guide), rejection

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        super().add_request(req_index, new_req_data)
        if self._slots is None:
            return
        self._slots.remove(req_index)
        params = new_req_data.sampling_params
        payload = Payload.of(getattr(params, "extra_args", None))
        if payload is None:
            return
        prompt = len(new_req_data.prompt_token_ids)
        written = (new_req_data.prefill_token_ids or ())[prompt:]
        budget = min(params.max_tokens, self.max_model_len - prompt)
        self._slots.add(req_index, payload, budget, written)

    def remove_request(self, req_id: str) -> None:
        index = self._req_id_to_index.get(req_id)
        if index is not None and self._slots is not None:
            self._slots.remove(index)
        super().remove_request(req_id)


class ConstrainedDiffusionGemma(DiffusionGemmaForConditionalGeneration):
    """Model that is registered in place of vLLM's own."""

    @staticmethod
    def get_model_state_cls() -> type[ConstrainedModelState]:
        return ConstrainedModelState
