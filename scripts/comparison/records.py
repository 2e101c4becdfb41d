"""Runs on disk: a line each, as they end, so that a comparison which was stopped goes on."""

import csv
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from comparison.runs import Run


class RecordsError(Exception):
    """A folder holds the runs of another comparison."""


class Records:
    """`results.jsonl` in a folder, beside the settings that its runs were made with."""

    def __init__(self, folder: Path, settings: dict[str, Any]):
        """Raises `RecordsError` where there are runs of other settings, `OSError` for no folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self._path, kept = folder / "results.jsonl", folder / "settings.json"
        self._settings = settings
        if kept.exists():
            before = json.loads(kept.read_text(encoding="utf-8"))
            for name, value in settings.items():
                if before.get(name) != value:
                    raise RecordsError(
                        f"{folder} holds runs with {name} {before.get(name)!r}, not {value!r}: "
                        "take another folder"
                    )
        kept.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        self.runs = self._read()

    def add(self, run: Run) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(run), ensure_ascii=False) + "\n")
        self.runs.append(run)

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

    def _read(self) -> list[Run]:
        """What is there; a line that a kill cut short goes."""
        if not self._path.exists():
            return []
        whole, end, _ = self._path.read_bytes().rpartition(b"\n")
        self._path.write_bytes(whole + end)
        return [Run(**json.loads(line)) for line in whole.splitlines()]
