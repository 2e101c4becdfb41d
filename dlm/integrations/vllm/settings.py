"""Settings of the plugin, from environment variables: vLLM has no flags of plugins."""

from dlm.integrations import settings

STEP_WORK = "DLM_VLLM_STEP_WORK"


def step_work() -> int:
    """Return the units of work of a step, as `integrations.settings.step_work` does."""
    return settings.step_work(STEP_WORK)
