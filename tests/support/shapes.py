"""Modules whose annotated shapes are checked, by an import hook, and the calls that are checked."""

from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import jaxtyping

ROOT = Path(__file__).parents[2]
GRAMMAR = "dlm.grammar."
FIRST = 4  # calls of each function in a test that are all checked

_checked_always = jaxtyping.jaxtyped


class Schedule:
    """The calls of a function that are checked: the first of each test, then one in `every`."""

    def __init__(self) -> None:
        self.test = 0
        self.every = 1

    def begin(self, every: int) -> None:
        """Begin another test."""
        self.test += 1
        self.every = every


schedule = Schedule()


def jaxtyped(function: Any = None, *, typechecker: Callable[..., Any]) -> Any:
    """Do what jaxtyping's decorator does, but leave most of many calls unchecked: a check takes
    longer than a small operation, and the thousandth call of a test shows nothing new."""
    if function is None:
        return partial(jaxtyped, typechecker=typechecker)
    checked = _checked_always(function, typechecker=typechecker)
    if isinstance(function, type):
        return checked
    test = calls = 0

    @wraps(checked)
    def scheduled(*args: Any, **more: Any) -> Any:
        nonlocal test, calls
        if test != schedule.test:
            test, calls = schedule.test, 0
        calls += 1
        if calls <= FIRST or calls % schedule.every == 0:
            return checked(*args, **more)
        return function(*args, **more)

    return scheduled


def install() -> None:
    """Have all modules checked that are imported later."""
    jaxtyping.jaxtyped = jaxtyped
    jaxtyping.install_import_hook(hooked(), "beartype.beartype")


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
