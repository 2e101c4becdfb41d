"""State of requests in a worker of vLLM, their constraints included: what all its models share.

If something fails before the first request, the sampler stays vLLM's own, and the front end refuses
constraints: it asks workers for their tasks, of which constraints are one (`TASK`).
"""

# pyright: reportMissingImports=false

import logging
from typing import Any, ClassVar

import numpy as np
import torch

from dlm.grammar import Compiler
from dlm.integrations.vllm.admission import vocabulary_of
from dlm.integrations.vllm.own import TASK, OwnModel
from dlm.integrations.vllm.payload import Payload
from dlm.integrations.vllm.sampler import ConstrainedSampler
from dlm.integrations.vllm.self_check import check_sampler
from dlm.integrations.vllm.settings import step_work
from dlm.integrations.vllm.slots import Slots
from dlm.logits.guided import LogitsGuide
from dlm.policy import Policy

_LOG = logging.getLogger("vllm.dlm")


class ConstrainedState:
    """Part of a state that keeps the constraints; vLLM's own class comes after it."""

    own: ClassVar[OwnModel]
    model_config: Any
    diffusion_states: Any
    device: torch.device
    max_model_len: int
    _req_id_to_index: dict[str, int]

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._slots: Slots | None = None  # None: constraints are not served

    def custom_sampler(self, sampler: Any) -> tuple[Any, Any] | None:
        made = super().custom_sampler(sampler)  # pyright: ignore[reportAttributeAccessIssue]
        if made is None:
            return made
        inner, rejection = made
        try:
            constrained, self._slots = self._constrained(inner)
        except Exception:
            _LOG.exception(
                "dlm: constraints are not served: the check of the sampler at its start failed"
            )
            return made
        return constrained, rejection

    def _constrained(self, inner: Any) -> tuple[Any, Slots]:
        """Return the plugin's sampler around vLLM's own, and the constraints of its requests."""
        from vllm.tokenizers import cached_tokenizer_from_config

        tokenizer = cached_tokenizer_from_config(model_config=self.model_config)
        compiler = Compiler(vocabulary_of(self.model_config, tokenizer, self.own))
        slots = Slots(compiler, Policy())
        guide = LogitsGuide(self.model_config.get_vocab_size(), step_work())
        guide.warm_up(self.device)
        constrained = check_sampler(
            lambda guide: self._sampler(inner, slots, guide), guide, slots, compiler, self._batch
        )
        return constrained, slots

    def _sampler(self, inner: Any, slots: Slots, guide: Any) -> ConstrainedSampler:
        """Return the plugin's sampler around vLLM's own."""
        raise NotImplementedError

    def _batch(self, count: int, length: int) -> Any:
        """Return a batch in which the first `count` slots denoise canvases of a `length`."""
        from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers

        batch = InputBatch.make_dummy(count, count, InputBuffers(count, count, self.device))
        starts = np.arange(count + 1, dtype=np.int32) * length
        batch.num_draft_tokens = count * length
        batch.cu_num_logits_np = batch.query_start_loc_np = starts
        batch.cu_num_logits = batch.query_start_loc = torch.from_numpy(starts).to(self.device)
        return batch

    def get_supported_generation_tasks(self) -> tuple[Any, ...]:
        tasks = super().get_supported_generation_tasks()  # pyright: ignore[reportAttributeAccessIssue]
        return tasks if self._slots is None else (*tasks, TASK)

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        super().add_request(req_index, new_req_data)  # pyright: ignore[reportAttributeAccessIssue]
        if self._slots is None:
            return
        self._slots.remove(req_index)
        params = new_req_data.sampling_params
        payload = Payload.of(getattr(params, "extra_args", None))
        if params is None or payload is None:
            return
        prompt = len(new_req_data.prompt_token_ids)
        written = (new_req_data.prefill_token_ids or ())[prompt:]
        budget = min(params.max_tokens, self.max_model_len - prompt)
        self._slots.add(req_index, payload, budget, written, new_req_data.req_id)

    def remove_request(self, req_id: str) -> None:
        index = self._req_id_to_index.get(req_id)
        if index is not None and self._slots is not None:
            self._slots.remove(index)
        super().remove_request(req_id)  # pyright: ignore[reportAttributeAccessIssue]
