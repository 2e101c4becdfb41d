"""Registration of a plugin in another engine. Knows no engine, and imports nothing of dlm: it also
runs where the plugin has nothing to serve."""

import logging
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path


def register(
    package: str, name: str, log: logging.Logger, install: Callable[[Path], list[str]]
) -> None:
    """Put a plugin into this process's engine, which logs call `name`.

    `install` gets the folder of the engine's `package`, and returns what the plugin lacks there, in
    words. Without that package, nothing is done. Raises nothing: whatever fails, the engine is left
    as it is, and the reason is logged.
    """
    try:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            return
        lacking = install(Path(spec.origin).parent)
    except Exception as error:
        lacking = [f"{type(error).__name__}: {error}"]
    if lacking:
        log.warning(
            "dlm: %s %s is left as it is, without grammars for diffusion models; missing: %s",
            name,
            getattr(sys.modules.get(package), "__version__", "of an unknown version"),
            "; ".join(lacking),
        )
