"""Settings of the plugin, from environment variables: vLLM has no flags of plugins."""

import os

from dlm.errors import DlmError
from dlm.policy import Policy

STEP_WORK = "DLM_VLLM_STEP_WORK"


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
