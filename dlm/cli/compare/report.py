"""Report of a comparison: one page with the modes, the tables and the pictures.

Tables have rates with intervals, and pairs of modes on the same prompts.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from dlm.cli.compare.modes import Mode
from dlm.cli.compare.runs import Run

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


Table = Mapping[str, Sequence[Run]]  # runs, by mode

matplotlib.rcParams.update({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "dlm"})


def all_plots(table: Table) -> list[tuple[str, str]]:
    """Return the caption and the SVG of each picture."""
    known = any(run.exact is not None for runs in table.values() for run in runs)
    plots = [("What is valid JSON under its schema, and what is right.", rates(table, known))]
    if known:
        plots.append(("Right answers against forward passes.", svg(quality(table))))
    plots.append(("Forward passes against tokens: each point is a prompt.", passes(table)))
    plots.append(("Where the time of a prompt goes.", times(table)))
    return plots


def quality(table: Table) -> Figure:
    """Draw exact match against forward passes: a point for each mode, with intervals."""
    figure, axes = _figure(7, 3.4)
    for name, runs in table.items():
        x, y = (estimate(list(runs), of) for of in (lambda run: run.calls, lambda run: run.exact))
        if x is None or y is None:
            continue
        xerr, yerr = _bar(x), _bar(y)
        axes.errorbar(x.mean, y.mean, yerr, xerr, fmt="o", markersize=5, capsize=2, label=name)
    axes.set(xlabel="forward passes a prompt", ylabel="exact match")
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
        found = [estimate(list(runs), of) for runs in table.values()]
        at = [i + (k - (len(kinds) - 1) / 2) * height for i in range(len(table))]
        means = [each.mean if each else 0 for each in found]
        errors = [_bar(each) if each else [[0], [0]] for each in found]
        joined = [[error[side][0] for error in errors] for side in (0, 1)]
        bars = axes.barh(at, means, height, xerr=joined, color=color, label=label)
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
    axes.set_xlabel("milliseconds a prompt")
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


def _bar(found: Estimate) -> list[list[float]]:
    return [[max(0.0, found.mean - found.low)], [max(0.0, found.high - found.mean)]]


_PAGE = Path(__file__).with_name("report.html")


def page(
    table: Mapping[str, Sequence[Run]],
    modes: Sequence[Mode],
    settings: Mapping[str, Any],
    command: str,
) -> str:
    """Return the report as self-contained HTML."""
    reference, *others = (list(runs) for runs in table.values())
    rows = [(name, cells(list(runs))) for name, runs in table.items()]
    page = jinja2.Template(_PAGE.read_text(encoding="utf-8"), autoescape=True)
    return page.render(
        title=f"{settings['study'].capitalize()} compared",
        prompts=len(reference),
        modes=modes,
        settings=settings,
        command=command,
        columns=[*rows[0][1]],
        rows=rows,
        pairs=[pair for other in others if (pair := paired(reference, other))],
        plots=all_plots(table),
        failed=[run for runs in table.values() for run in runs if run.error],
    )


def cells(runs: list[Run]) -> dict[str, str]:
    """Return the cells of a mode's row, by their columns."""
    tokens, calls = sum(run.tokens for run in runs), sum(run.calls for run in runs)
    first = [run.first_seconds for run in runs if run.first_seconds is not None]
    return {
        "valid": _rate(estimate(runs, lambda run: run.valid)),
        "complete": _rate(estimate(runs, lambda run: run.complete)),
        "exact": _rate(estimate(runs, lambda run: run.exact)),
        "fields (F1)": _rate(estimate(runs, lambda run: run.f1)),
        "passes": _number(estimate(runs, lambda run: run.calls)),
        "tokens": _number(estimate(runs, lambda run: run.tokens)),
        "tokens a pass": f"{tokens / max(1, calls):.2f}",
        **{
            name: f"{np.mean([getattr(run, name) for run in runs]):.2f}"
            for name in ("tries", "repairs", "pins", "rollbacks")
        },
        "ms": _milliseconds([run.seconds for run in runs]),
        "ms in the model": _milliseconds([run.model_seconds for run in runs]),
        "ms in the grammar": _milliseconds([run.grammar_seconds for run in runs]),
        "ms to the first text": _milliseconds(first),
    }


def _milliseconds(seconds: list[float]) -> str:
    return f"{1000 * np.mean(seconds):.0f}" if seconds else ""


def _rate(found: Estimate | None) -> str:
    return "" if found is None else f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _number(found: Estimate | None) -> str:
    return "" if found is None else f"{found.mean:.2f} [{found.low:.2f}, {found.high:.2f}]"
