"""Modules whose annotated shapes are checked, by an import hook."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
GRAMMAR = "dlm.grammar."


def name_of(path: Path) -> str:
    """Return the module of a file of dlm/, grammar/, models/, kernels/ or scripts/."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] == "scripts":
        return ".".join(parts[1:])
    return ".".join(parts if parts[0] == "dlm" else ("dlm", *parts))


def has_shapes(path: Path) -> bool:
    return "from jaxtyping import" in path.read_text()


def hooked() -> list[str]:
    """Return the modules that have shapes to check, except two rooms: dlm.grammar, called for
    each token of a text, where a check takes many times as long as what it checks, and which has a
    test of its own; and dlm.kernels, whose jit helpers the hook breaks."""
    paths = [p for top in ("dlm", "models", "scripts") for p in sorted((ROOT / top).rglob("*.py"))]
    return [name_of(path) for path in paths if has_shapes(path)]
