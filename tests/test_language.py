"""Plain words, as far as a machine can hold them: first words, forbidden words, class names."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("dlm", "grammar", "kernels", "models", "scripts", "examples", "tests")
INSTALLED = ROOT / "tests" / "clients" / "node_modules"
FIRST = set(  # words that a docstring does not begin with: its first line has a verb or a noun
    "all as behind either from how it like none of so such that the_same they this those what "
    "where which whoever whose why".split()
)
FORBIDDEN = re.compile(  # in docstrings and comments
    r"\b(so many|as many as|in front of|behind|told|whoever|whatever it may be)\b", re.IGNORECASE
)
NAMES = {"said", "told", "behind", "asked"}  # parts of identifiers
IDIOM = re.compile(  # in messages of errors, which are "`x` must be ..., got ..."
    r": (it|they) takes?\b|\btakes (exactly )?one of\b|which there is not|half a surrogate"
)
LOCALS = set(  # names of parameters and variables that do not say what a value is
    "found rest known given held wanted one each begun joined listed".split()
)
CLEAN = (  # folders and files whose locals follow this rule
    "grammar/calls grammar/masks grammar/vocabulary grammar/parse/closing.py "
    "grammar/parse/compiled.py grammar/parse/matcher.py grammar/parse/prefix.py "
    "grammar/parse/steps.py "
    "dlm/anthropic dlm/decisions dlm/integrations dlm/openai dlm/serving grammar/regex "
    "grammar/rules grammar/specs dlm/admission.py dlm/chat.py dlm/chat_template.py dlm/events.py "
    "dlm/commands.py dlm/constraining.py dlm/engine_loading.py dlm/event_routes.py "
    "dlm/scheduler.py dlm/loop/pass_plan.py dlm/warm_up.py "
    "dlm/image_files.py dlm/images.py dlm/policy.py dlm/request.py dlm/stream.py "
    "dlm/template_effort.py dlm/template_environment.py dlm/cli/command_line.py "
    "dlm/cli/display.py dlm/cli/generate.py dlm/cli/options.py dlm/cli/plan.py "
    "dlm/cli/quantize.py dlm/cli/serve.py"
).split()


def sources() -> Iterator[Path]:
    for folder in FOLDERS:
        paths = sorted((ROOT / folder).rglob("*.py"))
        yield from (path for path in paths if not path.is_relative_to(INSTALLED))


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sources():
        yield path.relative_to(ROOT), ast.parse(path.read_text())


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each docstring."""
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    name = getattr(node, "name", "")
                    yield f"{path} {name}", text


def comments() -> Iterator[tuple[str, str]]:
    for path in sources():
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type == tokenize.COMMENT:
                yield f"{path.relative_to(ROOT)}:{token.start[0]}", token.string


def clean_trees() -> Iterator[tuple[Path, ast.Module]]:
    for name in CLEAN:
        path = ROOT / name
        assert path.exists(), name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield file.relative_to(ROOT), ast.parse(file.read_text())


def locals_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each parameter and variable, of functions and modules."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name


def first_word(text: str) -> str:
    words = text.lower().replace("the same", "the_same").split()
    return words[0].strip(".,:;`'\"") if words else ""


def test_a_docstring_begins_with_a_verb_or_a_noun():
    found = [
        (where, text.splitlines()[0]) for where, text in docstrings() if first_word(text) in FIRST
    ]
    assert not found, "\n".join(f"{where}: {line}" for where, line in found)


def test_docstrings_and_comments_have_no_words_of_a_dialect():
    found = [
        (where, match[0])
        for where, text in (*docstrings(), *comments())
        if (match := FORBIDDEN.search(text))
    ]
    assert not found, "\n".join(f"{where}: {word}" for where, word in found)


def test_names_have_no_words_of_a_dialect():
    found = defaultdict(set)
    for path, tree in trees():
        for node in ast.walk(tree):
            names = [getattr(node, key, None) for key in ("id", "attr", "arg", "name")]
            for name in names:
                if isinstance(name, str) and NAMES & set(name.lower().split("_")):
                    found[str(path)].add(name)
    assert not found, "\n".join(f"{path}: {sorted(names)}" for path, names in found.items())


def test_an_error_says_what_a_value_must_be():
    dialect = [
        f"{path}:{node.lineno}: {node.value}"
        for path, tree in trees()
        if path.parts[0] != "tests"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if "\n" not in node.value and IDIOM.search(node.value)  # docstrings have lines
    ]
    assert not dialect, "\n".join(dialect)


def test_a_local_says_what_a_value_is():
    vague = [
        f"{path}:{line}: {name}"
        for path, tree in clean_trees()
        for line, name in locals_of(tree)
        if name in LOCALS
    ]
    assert not vague, "\n".join(vague)


def test_a_class_name_stands_for_one_thing():
    found = defaultdict(set)
    for path, tree in trees():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and path.parts[0] not in ("examples", "tests"):
                found[node.name].add(str(path))
    twice = {name: sorted(paths) for name, paths in found.items() if len(paths) > 1}
    assert not twice


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("Return the tokens.", "return"),
        ("`mask` of a row", "mask"),
        ("The same, again", "the_same"),
    ],
)
def test_first_words_are_read_as_they_are_written(text, word):
    assert first_word(text) == word


def test_locals_of_every_form_are_seen():
    text = """
def f(found, *rest):
    for one in rest:
        given = [each for each in one]
    with open(x) as held:
        match held:
            case [known, *wanted]:
                pass
"""
    seen = {name for _, name in locals_of(ast.parse(text))}
    assert seen == {"found", "rest", "one", "given", "each", "held", "known", "wanted"}
