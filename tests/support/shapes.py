"""Where shapes are checked as they are written, by an import hook."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
EACH_TOKEN = ("dlm.grammar.parse.", "dlm.grammar.masks")


def name_of(path: Path) -> str:
    """The module of a file of dlm/, grammar/, models/ or kernels/."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "dlm" else ("dlm", *parts))


def has_shapes(path: Path) -> bool:
    return "from jaxtyping import" in path.read_text()


def hooked() -> list[str]:
    """All modules that have shapes to check, but for two sorts: those that are called for each
    token of a text, where a check takes many times as long as what it checks, and which have a test
    of their own; and dlm.kernels, whose jit helpers the hook breaks."""
    paths = [p for top in ("dlm", "grammar", "models") for p in sorted((ROOT / top).rglob("*.py"))]
    names = [name_of(path) for path in paths if has_shapes(path)]
    return [name for name in names if not name.startswith(EACH_TOKEN)]
