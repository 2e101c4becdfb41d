"""What is done in a process of its own: grammars are made, finished answers are read."""

from collections.abc import Sequence
from typing import Any

from dlm.grammar.parse.network import Network
from dlm.grammar.specs.spec import Spec
from dlm.grammar.tokens import CallMarkers, VocabularySlice


def build(spec: Spec, markers: CallMarkers | None) -> tuple[Network, bool]:
    """The network of a spec, and whether it is wider than the spec: then answers are checked."""
    return Network(spec.rules(markers)), spec.checked


def read(spec: Spec, tokens: Sequence[int], excerpt: VocabularySlice) -> Any:
    """What a finished answer means; `InvalidValueError` if the spec refuses it after all."""
    return spec.read(tokens, excerpt)
