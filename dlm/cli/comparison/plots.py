"""Pictures of a comparison, as SVG within a page or as a PNG file."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dlm.cli.comparison.runs import Run
from dlm.cli.comparison.statistics import Estimate, estimate

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
