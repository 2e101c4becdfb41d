"""The extension in C that walks along a trie, joins sets of tokens, takes steps of parsers,
makes automata of words and measures networks, if it is built and of the version that is expected.

`DLM_NATIVE=0` in the environment leaves it out. The module needs neither numpy nor torch.
"""

import logging
import os
from functools import cache
from importlib import import_module
from typing import Any

_LOG = logging.getLogger(__name__)
_MODULE, _VERSION = "dlm.grammar._walk", 13  # that of `VERSION` in _walk.c


@cache
def load() -> tuple[Any, str]:
    """Return the extension, and "C"; or None, and "numpy" with the reason.

    An extension that is there and of no use is logged as a warning.
    """
    if os.environ.get("DLM_NATIVE") == "0":
        return None, "numpy: DLM_NATIVE is 0"
    try:
        module: Any = import_module(_MODULE)
    except ModuleNotFoundError:
        return None, "numpy: the C extension is not built"
    except (ImportError, SystemError) as error:
        return None, _useless(f"cannot be loaded: {error}")
    version = getattr(module, "VERSION", None)
    if version != _VERSION:
        return None, _useless(f"has version {version}, not {_VERSION}; build it again")
    return module, "C"


def _useless(problem: str) -> str:
    _LOG.warning("the C extension %s", problem)
    return f"numpy: the C extension {problem}"
