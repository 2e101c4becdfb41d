"""Functions of vLLM that are wrapped where they are: each once, however often it is asked for."""

import functools
from collections.abc import Callable
from typing import Any

_MARK = "wrapped_by_dlm"

Function = Callable[..., Any]


def wrap(owner: type, name: str, make: Callable[[Function], Function]) -> None:
    """Put what `make` makes of the method `name` of `owner` in its place."""
    original = getattr(owner, name)
    if not hasattr(original, _MARK):
        wrapper = functools.wraps(original)(make(original))
        setattr(wrapper, _MARK, True)
        setattr(owner, name, wrapper)
