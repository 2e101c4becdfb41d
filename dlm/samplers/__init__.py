"""Samplers of canvases, by name. A family of models names the one that its checkpoints use.

`register` adds a sampler of another package.
"""

from collections.abc import Callable, Mapping
from typing import Any

from dlm.errors import DlmError
from dlm.samplers.entropy_bound import EntropyBound
from dlm.samplers.reveal import Reveal
from dlm.samplers.sampler import Sampler

_SAMPLERS: dict[str, Callable[..., Sampler]] = {"entropy_bound": EntropyBound, "reveal": Reveal}


def register(name: str, sampler: Callable[..., Sampler]) -> None:
    """Make `sampler(**settings)` known as `name`. Raises `DlmError` if another one has the name."""
    if _SAMPLERS.setdefault(name, sampler) is not sampler:
        raise DlmError(f"sampler {name!r} is registered already")


def sampler_of(name: str, settings: Mapping[str, Any]) -> Sampler:
    """Return the sampler of this name. Raises `DlmError` for an unknown name, or settings that it
    refuses."""
    if name not in _SAMPLERS:
        raise DlmError(f"sampler must be one of {', '.join(_SAMPLERS)}, got {name!r:.60}")
    return _SAMPLERS[name](**settings)
