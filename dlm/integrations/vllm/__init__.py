"""Grammars inside vLLM's DiffusionGemma: a general plugin of vLLM's own kind.

vLLM calls `register` in each of its processes. There a subclass of the model takes its place in
the registry (`model`), whose sampler asks the grammars (`sampler`, `slots`); requests are admitted
in the front end (`front_end`, `admission`), and one that fails is ended by the scheduler
(`scheduler`). Nothing of vLLM is edited, and a request without a constraint takes vLLM's own path.

Where this vLLM lacks something that the plugin needs (`needs`), it stays exactly as it was, and one
line says so. `VLLM_PLUGINS=` turns the plugin off.
"""

import logging
import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

_LOG = logging.getLogger("vllm.dlm")  # below vLLM's own, so that its handlers show it


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
    from dlm.integrations.vllm import front_end, scheduler

    vllm.ModelRegistry.register_model(
        "DiffusionGemmaForBlockDiffusion", "dlm.integrations.vllm.model:ConstrainedDiffusionGemma"
    )
    front_end.install()
    scheduler.install()
