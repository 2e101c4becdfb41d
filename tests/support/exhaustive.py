"""Shares of long tests that run by default; `make test-all` runs the whole of each."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings


def examples(count: int, **more: Any) -> settings:
    """Return settings of `count` examples in the profile "exhaustive", by default of a fifth."""
    return settings(max_examples=max(4, share(count)), **more)


def share(count: int) -> int:
    """Return `count` in the profile "exhaustive", by default a fifth of it."""
    return count * settings().max_examples // 100


def by_default(values: Iterable[Any], count: int = 1) -> list[Any]:
    """Return parameters of a test: those after the first `count` are marked exhaustive.

    A tuple is one value for each of several arguments."""
    found = [*values]
    rest = [v if isinstance(v, tuple) else (v,) for v in found[count:]]
    return found[:count] + [pytest.param(*v, marks=pytest.mark.exhaustive) for v in rest]
