"""Statistics of runs: rates with intervals, and pairs of modes on the same prompts."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from dlm.cli.comparison.runs import Run

_RESAMPLES, _LEVEL = 2000, 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over prompts, with its 95 % interval (percentile bootstrap)."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Numbers of prompts that only one of two modes gets right (McNemar's test, exact)."""

    one: str
    other: str
    only_one: int
    only_other: int
    p: float  # two-sided: how likely so uneven a split is by chance


def estimate(runs: list[Run], of: Callable[[Run], float | bool | None]) -> Estimate | None:
    """Return the mean of `of` over runs, without those where it is None; None if none is left."""
    values = np.array([value for run in runs if (value := of(run)) is not None], dtype=float)
    if not len(values):
        return None
    mean = float(values.mean())
    if values.min() == values.max():
        return Estimate(mean=mean, low=mean, high=mean)
    found = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=_RESAMPLES,
        confidence_level=_LEVEL,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(mean=mean, low=float(found.low), high=float(found.high))


def paired(one: list[Run], other: list[Run]) -> Paired | None:
    """Compare two modes on their common prompts; return None if they have none.

    A run counts as right by exact match, or by validity where no expected answer is known.
    """
    theirs = {run.prompt_id: run for run in other}
    pairs = [(run, theirs[run.prompt_id]) for run in one if run.prompt_id in theirs]
    if not pairs:
        return None
    outcomes = [(_right(a), _right(b)) for a, b in pairs]
    only_one, only_other = outcomes.count((True, False)), outcomes.count((False, True))
    split = only_one + only_other
    p = float(stats.binomtest(only_one, split).pvalue) if split else 1.0
    return Paired(
        one=one[0].mode, other=other[0].mode, only_one=only_one, only_other=only_other, p=p
    )


def _right(run: Run) -> bool:
    return run.valid if run.exact is None else run.exact
