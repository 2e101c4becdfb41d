"""Names that a plugin needs of another engine, looked up in the engine's source.

The source is read, not imported: some of it would claim a GPU. Knows no engine.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A class, with methods by the names of their first parameters, and attributes."""

    file: str  # below the engine's package
    name: str
    methods: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    attributes: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()  # methods that the class itself calls


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededFunction:
    """A function of a module, by the names of its first parameters."""

    file: str
    name: str
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededVariable:
    """A variable that a module assigns."""

    file: str
    name: str


AnyNeed = Need | NeededFunction | NeededVariable


def lacking(root: Path, needs: Sequence[AnyNeed]) -> list[str]:
    """Return those of `needs` that the package at `root` lacks, in words."""
    trees = {file: parsed(root / file) for file in sorted({need.file for need in needs})}
    problems = [f"{file} cannot be read" for file, tree in trees.items() if tree is None]
    for need in needs:
        if (tree := trees[need.file]) is not None:
            problems += _problems(need, tree)
    return problems


def parsed(path: Path) -> ast.Module | None:
    """Return the source file at `path`, or None if it cannot be read."""
    try:
        return ast.parse(path.read_text())
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None


def _problems(need: AnyNeed, tree: ast.Module) -> Iterator[str]:
    if isinstance(need, NeededVariable):
        if need.name not in _assigned(tree):
            yield f"{need.name} in {need.file}"
    elif isinstance(need, NeededFunction):
        yield from _problems_of_function(need, tree)
    else:
        yield from _problems_of_class(need, tree)


def _problems_of_class(need: Need, tree: ast.Module) -> Iterator[str]:
    made = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == need.name), None)
    if made is None:
        yield f"{need.name} in {need.file}"
        return
    methods = {node.name: node for node in made.body if isinstance(node, _FUNCTIONS)}
    for name, parameters in need.methods.items():
        method = methods.get(name)
        if method is None:
            yield f"{need.name}.{name}"
            continue
        actual = tuple(argument.arg for argument in method.args.args if argument.arg != "self")
        if actual[: len(parameters)] != parameters:
            expected = ", ".join(parameters)
            yield f"{need.name}.{name}({expected}), whose parameters are {', '.join(actual)}"
    called = {
        node.func.attr
        for node in ast.walk(made)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    yield from (f"a call of {name} in {need.name}" for name in need.calls if name not in called)
    attributes = _attributes(made)
    yield from (f"{need.name}.{name}" for name in need.attributes if name not in attributes)


def _problems_of_function(need: NeededFunction, tree: ast.Module) -> Iterator[str]:
    made = next((n for n in tree.body if isinstance(n, _FUNCTIONS) and n.name == need.name), None)
    if made is None:
        yield f"{need.name} in {need.file}"
        return
    actual = tuple(argument.arg for argument in made.args.args)
    if actual[: len(need.parameters)] != need.parameters:
        expected = ", ".join(need.parameters)
        yield f"{need.name}({expected}), whose parameters are {', '.join(actual)}"


_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def _assigned(made: ast.ClassDef | ast.Module) -> set[str]:
    """Return the names that a class or a module assigns in its body."""
    names = set()
    for node in made.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def _attributes(made: ast.ClassDef) -> set[str]:
    """Return the fields of a class, and what its methods assign to `self`."""
    names = _assigned(made)
    for node in ast.walk(made):
        targets = node.targets if isinstance(node, ast.Assign) else ()
        targets = (node.target,) if isinstance(node, ast.AnnAssign) else targets
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                names |= {target.attr} if target.value.id == "self" else set()
    return names
