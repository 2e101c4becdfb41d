"""Flags that measuring scripts share, each with one name, type and help."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dlm.cli.command_line import CommandParser, check_counts

_COMMON: dict[str, dict[str, Any]] = {
    "model": {
        "metavar": "DIR",
        "help": "A DiffusionGemma directory. Default: the built-in model, tiny.",
    },
    "schemas": {
        "type": Path,
        "metavar": "FILE",
        "help": "Schemas with instances, one a line as JSON: a .jsonl or .jsonl.xz file.",
    },
    "tokenizer": {
        "type": Path,
        "metavar": "FILE",
        "help": "A tokenizer.json or tokenizer.json.xz file.",
    },
    "limit": {
        "type": int,
        "metavar": "N",
        "help": "The most lines of the file that are read. Default: all.",
    },
    "seed": {
        "type": int,
        "default": 0,
        "metavar": "N",
        "help": "The seed of everything that is drawn at random.",
    },
    "json": {"action": "store_true", "help": "Print JSON instead of a table."},
}
_FILES = ("data", "schemas", "tokenizer")


class MeasureParser(CommandParser):
    """Flags of a measuring script. Files have to exist, and numbers of things to be at least 1."""

    def __init__(self, doc: str | None, *common: str, required: Sequence[str] = ()):
        """Add the shared flags `common`, some of them `required`; `doc` is the docstring."""
        super().__init__(doc)
        self._counts = ["limit"] if "limit" in common else []
        for name in common:
            self.add_argument(f"--{name}", **_COMMON[name], required=name in required)

    def add_count(self, flag: str, default: int, purpose: str) -> None:
        """Add a flag for a number of things."""
        self.add_argument(flag, type=int, default=default, metavar="N", help=purpose)
        self._counts.append(flag.removeprefix("--").replace("-", "_"))

    def parsed(self) -> argparse.Namespace:
        """Return the flags of the command line, checked."""
        args = self.parse_args()
        check_counts(args, *self._counts)
        for name in _FILES:
            path = getattr(args, name, None)
            if path is not None and not path.is_file():
                self.error(f"there is no file {path}")
        return args
