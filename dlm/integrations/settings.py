"""Settings that the plugins of other engines share. Knows no engine."""

import os
from typing import get_args

from dlm.errors import DlmError
from dlm.integrations.unmasking import Order
from dlm.policy import Policy


def step_work(variable: str) -> int:
    """Return the units of work, of about 10 us each, that all grammars of a step share, by an
    environment variable: other engines have no flags of plugins.

    Raises `DlmError` if the variable is no such number.
    """
    text = os.environ.get(variable, "").strip()
    if not text:
        return Policy().step_work
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise DlmError(f"{variable} must be an integer of at least 1, got {text!r:.40}")
    return int(text)


def order(variable: str) -> Order:
    """Return the order in which constrained canvases are unmasked, by an environment variable.

    Raises `DlmError` if the variable is no such order.
    """
    text = os.environ.get(variable, "").strip() or "joint"
    orders: tuple[Order, ...] = get_args(Order)
    for name in orders:
        if name == text:
            return name
    raise DlmError(f"{variable} must be {' or '.join(orders)}, got {text!r:.40}")
