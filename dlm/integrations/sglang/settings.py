"""Settings of the plugin, from environment variables: SGLang has no flags of plugins."""

import os
from typing import Literal, get_args

from dlm.errors import DlmError
from dlm.policy import Policy

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
    """Return the units of work, of about 10 us each, that all grammars of a step share.

    Raises `DlmError` if the variable is no such number.
    """
    text = os.environ.get(STEP_WORK, "").strip()
    if not text:
        return Policy().step_work
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise DlmError(f"{STEP_WORK} must be an integer of at least 1, got {text!r:.40}")
    return int(text)
