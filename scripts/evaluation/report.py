"""Report of an evaluation: rows for a terminal, and a page with the modes, tables and pictures.

Tables of the page have rates with intervals, and pairs of modes on the same tasks.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from evaluation.modes import Mode
from evaluation.runs import Run

_RESAMPLES, _LEVEL = 2000, 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over prompts, with its 95 % interval (percentile bootstrap)."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Numbers of tasks that only one of two modes gets right (McNemar's test, exact)."""

    group: str  # of the tasks
    one: str
    other: str
    only_one: int
    only_other: int
    p: float  # two-sided: how likely so uneven a split is by chance


def estimate(runs: Sequence[Run], of: "RunFigure") -> Estimate | None:
    """Return the mean of `of` over runs, without those where it is None; None if none is left."""
    values = np.array([value for run in runs if (value := of(run)) is not None], dtype=float)
    if not len(values):
        return None
    mean = float(values.mean())
    if values.min() == values.max():
        return Estimate(mean=mean, low=mean, high=mean)
    interval = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=_RESAMPLES,
        confidence_level=_LEVEL,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(mean=mean, low=float(interval.low), high=float(interval.high))


def paired(group: str, one: Sequence[Run], other: Sequence[Run]) -> Paired | None:
    """Compare two modes on the common tasks of a group; return None if they have none.

    A run counts as right by exact match, or by validity where no expected answer is known.
    """
    theirs = {run.task_id: run for run in other}
    pairs = [(run, theirs[run.task_id]) for run in one if run.task_id in theirs]
    if not pairs:
        return None
    outcomes = [(_right(a), _right(b)) for a, b in pairs]
    only_one, only_other = outcomes.count((True, False)), outcomes.count((False, True))
    split = only_one + only_other
    p = float(stats.binomtest(only_one, split).pvalue) if split else 1.0
    return Paired(
        group=group,
        one=one[0].mode,
        other=other[0].mode,
        only_one=only_one,
        only_other=only_other,
        p=p,
    )


def _right(run: Run) -> bool:
    return run.valid if run.exact is None else run.exact


Table = Mapping[str, Sequence[Run]]  # runs, by the mode's name


def grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return runs by the group of their tasks; all of them too, if there are several groups."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    return groups if len(groups) < 2 else groups | {"all": list(runs)}


def pairs(table: Table, modes: Sequence[Mode]) -> Iterator[Paired]:
    """Yield the pairs of the first mode with each other one, and of modes that differ in the
    constraint alone."""
    for one, other in combinations(modes, 2):
        if one is not modes[0] and one.decoding != other.decoding:
            continue
        others = grouped(table[other.name])
        for group, runs in grouped(table[one.name]).items():
            if (pair := paired(group, runs, others.get(group, []))) is not None:
                yield pair


RunFigure = Callable[[Run], float | bool | None]  # None where it is not known
_RATES: dict[str, RunFigure] = {  # means that have an interval
    "valid": lambda run: run.valid,
    "complete": lambda run: run.complete,
    "exact": lambda run: run.exact,
    "F1 of fields": lambda run: run.f1,
    "passes": lambda run: run.calls,
    "tokens": lambda run: run.tokens,
}
_MEANS: dict[str, RunFigure] = {
    "text": lambda run: run.complete and not run.called,
    "tries": lambda run: run.tries,
    "repairs": lambda run: run.repairs,
    "pins": lambda run: run.pins,
    "rollbacks": lambda run: run.rollbacks,
    "ms": lambda run: 1000 * run.seconds,
    "ms in the model": lambda run: 1000 * run.model_seconds,
    "ms in the grammar": lambda run: 1000 * run.grammar_seconds,
    "ms to the first text": lambda run: run.first_seconds and 1000 * run.first_seconds,
}


def figures(runs: Sequence[Run]) -> dict[str, float | None]:
    """Return the figures of runs: means of a task, and ratios over all tasks."""
    values = {
        name: [value for run in runs if (value := figure(run)) is not None]
        for name, figure in (_RATES | _MEANS).items()
    }
    means = {name: float(np.mean(some)) if some else None for name, some in values.items()}
    wanted = sum(run.wanted or 0 for run in runs)
    return means | {
        "cut": sum(not run.complete for run in runs),
        "fields": sum(run.right or 0 for run in runs) / wanted if wanted else None,
        "tokens a pass": sum(run.tokens for run in runs) / max(1, sum(r.calls for r in runs)),
    }


def text_of(value: float | None) -> str:
    """Return a figure as text: a count, a number of three decimals, or one from 100 on."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 or isinstance(value, int) else f"{value:.3f}"


def table_rows(table: Table) -> list[tuple[str, str, list[Run]]]:
    """Return the runs of each group in each mode, group by group."""
    rows = [(group, mode, some) for mode in table for group, some in grouped(table[mode]).items()]
    order = list(dict.fromkeys(group for group, _, _ in rows))
    return sorted(rows, key=lambda row: order.index(row[0]))


matplotlib.rcParams.update({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "dlm"})


def all_plots(table: Table) -> list[tuple[str, str]]:
    """Return the caption and the SVG of each picture, of all groups together."""
    known = any(run.exact is not None for runs in table.values() for run in runs)
    plots = [("What is valid, and what is right.", rates(table, known))]
    if known:
        plots.append(("Right answers against forward passes.", svg(quality(table))))
    plots.append(("Forward passes against tokens: each point is a task.", passes(table)))
    plots.append(("Where the time of a task goes.", times(table)))
    return plots


def quality(table: Table) -> Figure:
    """Draw exact match against forward passes: a point for each mode, with intervals."""
    figure, axes = _figure(7, 3.4)
    for name, runs in table.items():
        x, y = (estimate(runs, of) for of in (lambda run: run.calls, lambda run: run.exact))
        if x is None or y is None:
            continue
        xerr, yerr = _bar(x), _bar(y)
        axes.errorbar(x.mean, y.mean, yerr, xerr, fmt="o", markersize=5, capsize=2, label=name)
    axes.set(xlabel="forward passes a task", ylabel="exact match")
    axes.set_xlim(left=0)
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))  # beside the plot
    return figure


def rates(table: Table, known: bool) -> str:
    figure, axes = _figure(7, 0.45 * len(table) + 1)
    kinds = [("valid", lambda run: run.valid, "#4c78a8")]
    if known:
        kinds.append(("exact", lambda run: run.exact, "#f58518"))
    height = 0.8 / len(kinds)
    for k, (label, of, color) in enumerate(kinds):
        shares = [estimate(runs, of) for runs in table.values()]
        at = [i + (k - (len(kinds) - 1) / 2) * height for i in range(len(table))]
        means = [share.mean if share else 0 for share in shares]
        errors = [_bar(share) if share else [[0], [0]] for share in shares]
        sides = [[error[side][0] for error in errors] for side in (0, 1)]
        bars = axes.barh(at, means, height, xerr=sides, color=color, label=label)
        axes.bar_label(bars, [f"{mean:.3f}" for mean in means], padding=3, fontsize=7)
    axes.set_yticks(range(len(table)), list(table))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15)
    axes.legend(fontsize=7, loc="lower right")
    return svg(figure)


def passes(table: Table) -> str:
    figure, axes = _figure(5.6, 3.4)
    for name, runs in table.items():
        tokens, calls = [run.tokens for run in runs], [run.calls for run in runs]
        axes.plot(tokens, calls, ".", markersize=3, alpha=0.5, label=name)
    axes.set(xlabel="tokens of the answer", ylabel="forward passes")
    axes.legend(fontsize=7, markerscale=3)
    return svg(figure)


def times(table: Table) -> str:
    figure, axes = _figure(7, 0.35 * len(table) + 1)
    left = [0.0] * len(table)
    parts = (
        ("model", lambda run: run.model_seconds),
        ("grammar", lambda run: run.grammar_seconds),
        ("the rest", lambda run: run.seconds - run.model_seconds - run.grammar_seconds),
    )
    for label, of in parts:
        means = [1000 * sum(map(of, runs)) / max(1, len(runs)) for runs in table.values()]
        axes.barh(list(table), means, left=left, label=label)
        left = [a + b for a, b in zip(left, means, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds a task")
    axes.legend(fontsize=7)
    return svg(figure)


def svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2]


def png(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=110)


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _bar(mean: Estimate) -> list[list[float]]:
    return [[max(0.0, mean.mean - mean.low)], [max(0.0, mean.high - mean.mean)]]


_PAGE = Path(__file__).with_name("report.html")


def page(table: Table, modes: Sequence[Mode], settings: Mapping[str, Any], command: str) -> str:
    """Return the report as self-contained HTML."""
    rows = [(group, mode, cells(runs)) for group, mode, runs in table_rows(table)]
    page = jinja2.Template(_PAGE.read_text(encoding="utf-8"), autoescape=True)
    return page.render(
        title=f"{settings['study'].capitalize()} compared",
        tasks=len(table[modes[0].name]),
        modes=modes,
        settings=settings,
        command=command,
        columns=[*rows[0][2]],
        rows=rows,
        pairs=[*pairs(table, modes)],
        plots=all_plots(table),
        failed=[run for runs in table.values() for run in runs if run.error],
    )


def cells(runs: list[Run]) -> dict[str, str]:
    """Return the cells of a row, by their columns."""
    texts = {name: text_of(value) for name, value in figures(runs).items()}
    for name, rate in _RATES.items():
        if (mean := estimate(runs, rate)) is not None:
            texts[name] += f" [{text_of(mean.low)}, {text_of(mean.high)}]"
    return texts
