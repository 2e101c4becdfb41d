"""Settings of the plugin, from environment variables: SGLang has no flags of plugins.

They are read once, when the plugin is registered.
"""

from dataclasses import dataclass

from dlm.integrations import settings
from dlm.integrations.unmasking import Order
from dlm.policy import Policy

ORDER, STEP_WORK = "DLM_SGLANG_ORDER", "DLM_SGLANG_STEP_WORK"


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """Settings of the algorithms."""

    order: Order = "joint"  # in which constrained blocks are unmasked
    step_work: int = Policy().step_work  # units that all grammars of a step share

    @classmethod
    def read(cls) -> "PluginSettings":
        """Return the settings of the environment. Raises `DlmError` for a value that means
        nothing."""
        return cls(settings.order(ORDER), settings.step_work(STEP_WORK))
