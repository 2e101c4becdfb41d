"""Plugin of vLLM that serves constraints with its DiffusionGemma.

vLLM calls `register` in each of its processes. It registers a subclass of the model (`model`),
whose sampler applies the grammars (`sampler`). Requests are admitted in the front end, and those
that fail are ended by the scheduler (`front_end`). No file of vLLM is changed, and a request
without a constraint takes vLLM's own path.

If this vLLM lacks something that the plugin needs (`needs`), nothing is registered, and a warning
is logged. Otherwise a line of level INFO says that constraints are served. `VLLM_PLUGINS=` turns
the plugin off.
"""

import logging
import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

_LOG = logging.getLogger("vllm.dlm")  # a child of vLLM's logger, for the handlers of that one


def register() -> None:
    """Put the plugin into this process's vLLM. Calling it again changes nothing."""
    from dlm.integrations.vllm.needs import missing

    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        return
    lacking = missing(Path(spec.origin).parent)
    if os.environ.get("VLLM_USE_RUST_FRONTEND", "0") not in ("", "0"):
        lacking.append("a front end in Python (VLLM_USE_RUST_FRONTEND is set)")
    vllm = import_module("vllm")
    if lacking:
        _LOG.warning(
            "dlm: vLLM %s is left as it is, without grammars for diffusion models; missing: %s",
            vllm.__version__,
            "; ".join(lacking),
        )
        return
    from dlm.integrations.vllm import hooks

    vllm.ModelRegistry.register_model(
        "DiffusionGemmaForBlockDiffusion", "dlm.integrations.vllm.model:ConstrainedDiffusionGemma"
    )
    hooks.install()
    _LOG.info("dlm: vLLM %s serves constraints with DiffusionGemma", vllm.__version__)
