"""The tasks of a worker process: build grammars, and read finished answers."""

from collections.abc import Sequence
from typing import Any

from dlm.grammar.parse.network import Network
from dlm.grammar.specs.spec import Spec
from dlm.grammar.tokens import CallMarkers, VocabularySlice


def build(spec: Spec, markers: CallMarkers | None) -> tuple[Network, bool]:
    """Return a spec's network, and whether finished answers need a check, since it is wider."""
    return Network(spec.rules(markers)), spec.checked


def read(spec: Spec, tokens: Sequence[int], excerpt: VocabularySlice) -> Any:
    """Return a finished answer's value. Raises `InvalidValueError` if the spec refuses it."""
    return spec.read(tokens, excerpt)
