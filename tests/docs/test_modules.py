"""The page of modules has a line for every module: the first sentence of its docstring.

`python tests/docs/test_modules.py` writes the page anew.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "modules.md"
FOLDERS = ("dlm", "grammar", "kernels", "models")
FIRST = (  # in the order of reading
    "dlm/request.py",
    "dlm/engine.py",
    "dlm/scheduler.py",
    "dlm/sequence.py",
    "dlm/loop/diffusion.py",
    "dlm/loop/denoise.py",
    "dlm/logits/distributions.py",
    "grammar/constraint.py",
    "grammar/canvas/frontier.py",
    "grammar/parse/compiled.py",
)
HEAD = """# Modules

The files of the four packages, in the words of their own docstrings.
[Design](design.md) says how they work together.

Ten files explain the rest, in this order; they are **bold** below."""


def page() -> str:
    parts = [HEAD, "\n".join(("", *(f"{i}. `{name}`" for i, name in enumerate(FIRST, 1))))]
    for folder in FOLDERS:
        rooms: dict[Path, list[Path]] = {}
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not (set(path.relative_to(ROOT / folder).parts[:-1]) & set(FOLDERS)):
                rooms.setdefault(path.parent, []).append(path)
        for room, paths in rooms.items():
            lines = [f"| {named(path)} | {text} |" for path in paths if (text := purpose(path))]
            if lines:
                name = f"\n## `{room.relative_to(ROOT)}/`\n\n| file | purpose |\n|---|---|"
                parts.append("\n".join((name, *lines)))
    return "\n".join(parts) + "\n"


def named(path: Path) -> str:
    bold = "**" if str(path.relative_to(ROOT)) in FIRST else ""
    return f"{bold}`{path.name}`{bold}"


def purpose(path: Path) -> str:
    """Return the first sentence of a module's docstring, in a cell of a table."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.])\s", text, maxsplit=1)[0].replace("|", "\\|")


def test_every_module_has_its_line():
    written = PAGE.read_text()
    assert written == page(), f"python {Path(__file__).relative_to(ROOT)} writes the page anew"


def test_the_files_to_read_first_are_there_and_marked():
    written = PAGE.read_text()
    assert all((ROOT / name).is_file() for name in FIRST)
    assert written.count("| **`") == len(FIRST) == 10


if __name__ == "__main__":
    PAGE.write_text(page())
