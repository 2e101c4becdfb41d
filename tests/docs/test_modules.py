"""The page of modules has a line for every module: the first sentence of its docstring.

`python tests/docs/test_modules.py` writes the page anew.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "modules.md"
FOLDERS = ("dlm", "grammar", "kernels", "models")
HEAD = """# Modules

The files of the four packages, in the words of their own docstrings.
[Design](design.md) says how they work together."""


def page() -> str:
    parts = [HEAD]
    for folder in FOLDERS:
        rooms: dict[Path, list[Path]] = {}
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not (set(path.relative_to(ROOT / folder).parts[:-1]) & set(FOLDERS)):
                rooms.setdefault(path.parent, []).append(path)
        for room, paths in rooms.items():
            lines = [f"| `{path.name}` | {text} |" for path in paths if (text := purpose(path))]
            if lines:
                name = f"\n## `{room.relative_to(ROOT)}/`\n\n| file | purpose |\n|---|---|"
                parts.append("\n".join((name, *lines)))
    return "\n".join(parts) + "\n"


def purpose(path: Path) -> str:
    """Return the first sentence of a module's docstring, in a cell of a table."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.])\s", text, maxsplit=1)[0].replace("|", "\\|")


def test_every_module_has_its_line():
    written = PAGE.read_text()
    assert written == page(), f"python {Path(__file__).relative_to(ROOT)} writes the page anew"


if __name__ == "__main__":
    PAGE.write_text(page())
