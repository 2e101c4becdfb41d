"""Commit of this checkout; it needs Python and git alone."""

import subprocess
from pathlib import Path


def commit() -> str:
    """Return the short name of this checkout's commit, with a plus if files differ from it."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        name = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        )
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True)
    except FileNotFoundError:  # there is no git
        return "unknown"
    return (name.stdout.strip() or "unknown") + ("+" if changed.stdout.strip() else "")
