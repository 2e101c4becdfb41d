"""Settings of the plugin, from environment variables: vLLM has no flags of plugins."""

from dlm.integrations import settings
from dlm.integrations.unmasking import Order

STEP_WORK, ORDER = "DLM_VLLM_STEP_WORK", "DLM_VLLM_ORDER"


def step_work() -> int:
    """Return the units of work of a step, as `integrations.settings.step_work` does."""
    return settings.step_work(STEP_WORK)


def order() -> Order:
    """Return the order in which canvases of masks are unmasked, as `integrations.settings.order`
    does."""
    return settings.order(ORDER)
