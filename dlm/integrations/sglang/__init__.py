"""Plugin of SGLang that serves constraints with masked diffusion models: LLaDA2, SDAR.

SGLang calls `register` in each of its processes. The plugin uses SGLang's own seams: its registry
of grammar backends (`backend`), its table of algorithms (`algorithms`), and hooks where a request
meets its grammar (`hooks`). No file of SGLang is changed and no flag is needed. If the model is not
a diffusion model, SGLang makes its own grammar backend, and nothing else of the plugin runs.

If this SGLang lacks something that the plugin needs (`needs`), nothing is registered, and a warning
is logged. When a scheduler starts, it tries the plugin with one small constraint (`self_check`); if
that fails, the reason is logged, and grammars are left to SGLang. `SGLANG_PLUGINS` without `dlm`
turns the plugin off.
"""

import logging
import sys
from importlib.util import find_spec
from pathlib import Path

_LOG = logging.getLogger("sglang.dlm")


def register() -> None:
    """Put the plugin into this process's SGLang. Calling it again changes nothing. Raises nothing:
    whatever fails, SGLang is left as it is, and the reason is logged."""
    try:
        lacking = _register()
    except Exception as error:
        lacking = [f"{type(error).__name__}: {error}"]
    if lacking:
        _LOG.warning(
            "dlm: SGLang %s is left as it is, without grammars for diffusion models; missing: %s",
            getattr(sys.modules.get("sglang"), "__version__", "of an unknown version"),
            "; ".join(lacking),
        )


def _register() -> list[str]:
    """Register the plugin, or return what it lacks, in words."""
    from dlm.integrations.sglang.needs import missing, polls

    spec = find_spec("sglang")
    if spec is None or spec.origin is None:
        return []
    root = Path(spec.origin).parent
    lacking = missing(root)
    if not lacking:
        from dlm.integrations.sglang import hooks

        hooks.install(polls(root))
    return lacking
