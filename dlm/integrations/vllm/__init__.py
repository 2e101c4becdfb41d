"""Plugin of vLLM that serves constraints with its diffusion models: DiffusionGemma, and
Nemotron-Labs-Diffusion where vLLM has it.

vLLM calls `register` in each of its processes. It registers a subclass of each model (`model`,
`nemotron`), whose sampler applies the grammars (`sampler`). Requests are admitted in the front end,
and those that fail are ended by the scheduler (`hooks`). No file of vLLM is changed. A request
without a constraint takes vLLM's own path, and so does every request of another model (`own`).

If this vLLM lacks something that the plugin needs (`needs`), nothing is registered, and a warning
is logged; likewise if it lacks something for one model alone, which is then left as it is. If one
of the models is loaded, a line of level INFO says that constraints are served. `VLLM_PLUGINS=`
turns the plugin off.
"""

import logging
import os
from pathlib import Path

from dlm.integrations import plugins

_LOG = logging.getLogger("vllm.dlm")  # a child of vLLM's logger, for the handlers of that one


def register() -> None:
    """Put the plugin into this process's vLLM, as `plugins.register` does. Calling it again changes
    nothing."""
    plugins.register("vllm", "vLLM", _LOG, _install)


def _install(root: Path) -> list[str]:
    """Install the plugin into the package at `root`, or return what it lacks, in words."""
    from dlm.integrations.vllm.needs import missing, servable, unservable

    lacking = missing(root)
    if os.environ.get("VLLM_USE_RUST_FRONTEND", "0") not in ("", "0"):
        lacking.append("a front end in Python (VLLM_USE_RUST_FRONTEND is set)")
    if lacking:
        return lacking
    from dlm.integrations.vllm import hooks, own

    installed = hooks.install()
    try:
        own.register(servable(root))
    except BaseException:
        installed.undo()
        raise
    for model, problems in unservable(root).items():
        _LOG.warning(
            "dlm: %s of vLLM is left as it is; missing: %s", model.architecture, "; ".join(problems)
        )
    return []
