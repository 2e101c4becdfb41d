"""Settings of the plugin, from environment variables: SGLang has no flags of plugins."""

import os
from typing import Literal, get_args

from dlm.errors import DlmError
from dlm.integrations import settings

ORDER, STEP_WORK = "DLM_SGLANG_ORDER", "DLM_SGLANG_STEP_WORK"
Order = Literal["joint", "prefix"]
"""Orders of unmasking: any sure position of a block, or none to the right of an unsure one."""


def order() -> Order:
    """Return the order in which constrained blocks are unmasked. Raises `DlmError`."""
    text = os.environ.get(ORDER, "").strip() or "joint"
    orders: tuple[Order, ...] = get_args(Order)
    for name in orders:
        if name == text:
            return name
    raise DlmError(f"{ORDER} must be {' or '.join(orders)}, got {text!r:.40}")


def step_work() -> int:
    """Return the units of work of a step, as `integrations.settings.step_work` does."""
    return settings.step_work(STEP_WORK)
