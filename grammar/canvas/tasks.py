"""What is done in a process of its own: rules are made, finished answers are read."""

from collections.abc import Sequence
from typing import Any

from dlm.grammar.excerpt import Excerpt
from dlm.grammar.markers import CallMarkers


def build(spec: Any, markers: CallMarkers | None) -> tuple[Any, bool]:
    """The rules of a `Spec`, and whether they are wider than it: then answers are checked."""
    return spec.rules(markers), spec.checked


def read(spec: Any, tokens: Sequence[int], excerpt: Excerpt) -> Any:
    """What a finished answer means; `InvalidValueError` if the spec refuses it after all."""
    return spec.read(tokens, excerpt)
