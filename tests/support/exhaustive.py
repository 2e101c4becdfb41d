"""Shares of long tests that run by default; `make test-all` runs the whole of each."""

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import settings


def examples(count: int, **more: Any) -> settings:
    """Return settings of `count` examples in the profile "exhaustive", by default of a fifth."""
    return settings(max_examples=max(4, share(count)), **more)


def is_exhaustive() -> bool:
    """Whether tests run whole."""
    return share(100) == 100


def share(count: int) -> int:
    """Return `count` in the profile "exhaustive", by default a fifth of it."""
    return count * settings().max_examples // 100


def by_default(values: Iterable[Any], count: int = 1) -> list[Any]:
    """Return parameters of a test: those after the first `count` are marked exhaustive.

    A tuple is one value for each of several arguments."""
    cases = [*values]
    others = [value if isinstance(value, tuple) else (value,) for value in cases[count:]]
    return cases[:count] + [pytest.param(*case, marks=pytest.mark.exhaustive) for case in others]


def pairs_by_default(*axes: Sequence[Any]) -> list[Any]:
    """Return all combinations of values for several arguments. Those that run by default have each
    two values of different arguments together at least once; the others are marked exhaustive."""
    cases = list(product(*(range(len(axis)) for axis in axes)))
    pairs = {case: set(combinations(enumerate(case), 2)) for case in cases}
    missing, chosen = set().union(*pairs.values()), set()
    while missing:
        best = max(cases, key=lambda case: len(pairs[case] & missing))
        chosen.add(best)
        missing -= pairs[best]
    return [
        pytest.param(
            *(axis[index] for axis, index in zip(axes, case, strict=True)),
            marks=() if case in chosen else pytest.mark.exhaustive,
        )
        for case in cases
    ]
