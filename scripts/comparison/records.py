"""Runs on disk: a line each, as they end, so that a comparison which was stopped goes on."""

import csv
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from comparison.runs import Run
from dlm.batch.batch import Lines


class Records:
    """`results.jsonl` in a folder, beside the settings that its runs were made with."""

    def __init__(self, folder: Path, settings: dict[str, Any]):
        """Raises `LinesError` where there are runs of other settings, `OSError` for no folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self.runs: list[Run] = []
        self._lines = Lines(folder / "results.jsonl", settings, self._take)

    def add(self, run: Run) -> None:
        self._lines.write(asdict(run))
        self.runs.append(run)

    def close(self) -> None:
        self._lines.close()

    def done(self, mode: str) -> set[int]:
        """The prompts that a mode has run."""
        return {run.prompt_id for run in self.runs if run.mode == mode}

    def of(self, mode: str) -> list[Run]:
        """Its runs, by prompt."""
        return sorted((run for run in self.runs if run.mode == mode), key=lambda r: r.prompt_id)

    def write_csv(self, path: Path) -> None:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Run)])
            writer.writeheader()
            writer.writerows(map(asdict, self.runs))

    def _take(self, run: dict[str, Any]) -> None:
        self.runs.append(Run(**run))
