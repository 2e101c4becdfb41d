"""Tests of the extension in C: marks of those that need it, and a check of reference counts."""

import sys
from collections.abc import Callable, Iterable

import pytest

from dlm.grammar.masks.bits import MADE_BY, NATIVE

needs_c = pytest.mark.skipif(NATIVE is None, reason=MADE_BY)
both = pytest.mark.parametrize(
    "native", [pytest.param(NATIVE, marks=needs_c), None], ids=["C", "numpy"]
)


def keeps_no_reference(call: Callable[[], object], things: Callable[[], Iterable[object]]) -> bool:
    """Whether calls after the first leave the reference counts of `things` as they are."""
    call()
    before = [*map(sys.getrefcount, things())]
    for _ in range(9):
        call()
    return [*map(sys.getrefcount, things())] == before
