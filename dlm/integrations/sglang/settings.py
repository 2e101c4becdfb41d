"""Settings of the plugin, from environment variables: SGLang has no flags of plugins.

They are read once, when the plugin is registered.
"""

import os
from dataclasses import dataclass
from typing import Literal, get_args

from dlm.errors import DlmError
from dlm.integrations import settings
from dlm.policy import Policy

ORDER, STEP_WORK = "DLM_SGLANG_ORDER", "DLM_SGLANG_STEP_WORK"
Order = Literal["joint", "prefix"]
"""Orders of unmasking: any sure position of a block, or none to the right of an unsure one."""


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """Settings of the algorithms."""

    order: Order = "joint"  # in which constrained blocks are unmasked
    step_work: int = Policy().step_work  # units that all grammars of a step share

    @classmethod
    def read(cls) -> "PluginSettings":
        """Return the settings of the environment. Raises `DlmError` for a value that means
        nothing."""
        return cls(_order(), settings.step_work(STEP_WORK))


def _order() -> Order:
    text = os.environ.get(ORDER, "").strip() or "joint"
    orders: tuple[Order, ...] = get_args(Order)
    for name in orders:
        if name == text:
            return name
    raise DlmError(f"{ORDER} must be {' or '.join(orders)}, got {text!r:.40}")
