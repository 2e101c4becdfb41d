"""Plugin of SGLang that serves constraints with diffusion models: LLaDA2, SDAR, DiffusionGemma.

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
from pathlib import Path

from dlm.integrations import plugins

_LOG = logging.getLogger("sglang.dlm")


def register() -> None:
    """Put the plugin into this process's SGLang, as `plugins.register` does. Calling it again
    changes nothing."""
    plugins.register("sglang", "SGLang", _LOG, _install)


def _install(root: Path) -> list[str]:
    """Install the plugin into the package at `root`, or return what it lacks, in words."""
    from dlm.integrations.sglang.needs import missing, polls

    lacking = missing(root)
    if not lacking:
        from dlm.integrations.sglang import hooks

        hooks.install(polls(root))
    return lacking
