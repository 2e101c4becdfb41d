"""Report of a comparison: one page with the modes, the tables and the pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from dlm.cli.comparison.modes import Mode
from dlm.cli.comparison.plots import all_plots
from dlm.cli.comparison.runs import Run
from dlm.cli.comparison.statistics import Estimate, estimate, paired

COLUMNS = (
    "valid",
    "complete",
    "exact",
    "fields (F1)",
    "passes",
    "tokens",
    "tokens a pass",
    "tries",
    "repairs",
    "pins",
    "rollbacks",
    "ms",
    "ms in the model",
    "ms in the grammar",
    "ms to the first text",
)
_PAGE = Path(__file__).with_name("report.html")


def page(
    table: Mapping[str, Sequence[Run]],
    modes: Sequence[Mode],
    settings: Mapping[str, Any],
    command: str,
) -> str:
    """Return the report as self-contained HTML."""
    reference, *others = (list(runs) for runs in table.values())
    page = jinja2.Template(_PAGE.read_text(encoding="utf-8"), autoescape=True)
    return page.render(
        title=f"{settings['study'].capitalize()} compared",
        prompts=len(reference),
        modes=modes,
        settings=settings,
        command=command,
        columns=COLUMNS,
        rows=[(name, cells(list(runs))) for name, runs in table.items()],
        pairs=[pair for other in others if (pair := paired(reference, other))],
        plots=all_plots(table),
        failed=[run for runs in table.values() for run in runs if run.error],
    )


def cells(runs: list[Run]) -> list[str]:
    """Return the cells of a mode's row, in the order of `COLUMNS`."""
    tokens, calls = sum(run.tokens for run in runs), sum(run.calls for run in runs)
    first = [run.first_seconds for run in runs if run.first_seconds is not None]
    return [
        _rate(estimate(runs, lambda run: run.valid)),
        _rate(estimate(runs, lambda run: run.complete)),
        _rate(estimate(runs, lambda run: run.exact)),
        _rate(estimate(runs, lambda run: run.f1)),
        _number(estimate(runs, lambda run: run.calls)),
        _number(estimate(runs, lambda run: run.tokens)),
        f"{tokens / max(1, calls):.2f}",
        *(
            f"{np.mean([getattr(run, name) for run in runs]):.2f}"
            for name in ("tries", "repairs", "pins", "rollbacks")
        ),
        *(
            f"{1000 * np.mean([getattr(run, name) for run in runs]):.0f}"
            for name in ("seconds", "model_seconds", "grammar_seconds")
        ),
        f"{1000 * np.mean(first):.0f}" if first else "",
    ]


def _rate(found: Estimate | None) -> str:
    return "" if found is None else f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _number(found: Estimate | None) -> str:
    return "" if found is None else f"{found.mean:.2f} [{found.low:.2f}, {found.high:.2f}]"
