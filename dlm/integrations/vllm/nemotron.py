"""Nemotron-Labs-Diffusion of vLLM with constraints: the same model with another state and sampler.

Only vLLM's own processes import this module, and only if vLLM has the model.
"""

# pyright: reportMissingImports=false

from typing import Any

from vllm.model_executor.models.nemotron_dllm import (
    NemotronLabsDiffusionForBlockDiffusion,
    NemotronLabsDiffusionModelState,
)

from dlm.integrations.vllm.masked import MaskedSampler
from dlm.integrations.vllm.own import NEMOTRON
from dlm.integrations.vllm.settings import order
from dlm.integrations.vllm.slots import Slots
from dlm.integrations.vllm.state import ConstrainedState


class ConstrainedNemotronState(ConstrainedState, NemotronLabsDiffusionModelState):
    """State of Nemotron's requests in a worker, their constraints included."""

    own = NEMOTRON

    def _sampler(self, inner: Any, slots: Slots, guide: Any) -> MaskedSampler:
        return MaskedSampler(inner, self.diffusion_states, slots, guide, order())


class ConstrainedNemotron(NemotronLabsDiffusionForBlockDiffusion):
    """Model that is registered in place of vLLM's own."""

    def get_model_state_cls(self) -> type:
        """Return the state with constraints; for text from left to right, vLLM's own."""
        own = super().get_model_state_cls()
        diffuses = issubclass(own, NemotronLabsDiffusionModelState)
        return ConstrainedNemotronState if diffuses else own
