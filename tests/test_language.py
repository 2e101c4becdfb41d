"""Plain words, as far as a machine can hold them: first words, forbidden words, class names."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("dlm", "grammar", "kernels", "models", "scripts", "examples", "tests")
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
        yield from (path for path in paths if "node_modules" not in path.parts)


class FileWords(NamedTuple):
    """Parts of one file that the rules read."""

    path: Path  # from the root
    docstrings: list[tuple[str, str]]  # the name of what each documents, and its text
    comments: list[tuple[int, str]]  # with a forbidden word: their lines and texts
    identifiers: set[str]
    strings: list[tuple[int, str]]  # of one line: their lines and values
    classes: list[str]  # of the module
    local_names: list[tuple[int, str]]  # of functions and the module, with their lines


@cache
def files() -> list[FileWords]:
    """Return the words of each file, which is parsed once for all rules."""
    return [words_of(path) for path in sources()]


def words_of(path: Path) -> FileWords:
    text = path.read_text()
    tree = ast.parse(text)
    words = FileWords(path.relative_to(ROOT), [], comments(text), set(), [], [], [])
    words.classes.extend(node.name for node in tree.body if isinstance(node, ast.ClassDef))
    nodes = list(ast.walk(tree))
    words.local_names.extend(locals_of(nodes))
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                words.docstrings.append((getattr(node, "name", ""), docstring))
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if "\n" not in node.value:
                words.strings.append((node.lineno, node.value))
        else:
            names = (getattr(node, key, None) for key in ("id", "attr", "arg", "name"))
            words.identifiers.update(name for name in names if isinstance(name, str))
    return words


def comments(text: str) -> list[tuple[int, str]]:
    """Return the comments that have a forbidden word. A file without such a word is not divided
    into tokens, which takes long."""
    if not FORBIDDEN.search(text):
        return []
    return [
        (token.start[0], token.string)
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and FORBIDDEN.search(token.string)
    ]


def locals_of(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each parameter and variable, of functions and modules."""
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name


def first_word(text: str) -> str:
    words = text.lower().replace("the same", "the_same").split()
    return words[0].strip(".,:;`'\"") if words else ""


def test_a_docstring_begins_with_a_verb_or_a_noun():
    wrong = [
        f"{file.path} {name}: {text.splitlines()[0]}"
        for file in files()
        for name, text in file.docstrings
        if first_word(text) in FIRST
    ]
    assert not wrong, "\n".join(wrong)


def test_docstrings_and_comments_have_no_words_of_a_dialect():
    dialect = [
        f"{file.path} {place}: {match[0]}"
        for file in files()
        for place, text in (*file.docstrings, *file.comments)
        if (match := FORBIDDEN.search(text))
    ]
    assert not dialect, "\n".join(dialect)


def test_comments_with_forbidden_words_are_seen():
    text = 'x = "told"  # as it was told\n# so many\n"""behind"""\n'
    assert comments(text) == [(1, "# as it was told"), (2, "# so many")]


def test_names_have_no_words_of_a_dialect():
    dialect = {
        str(file.path): names
        for file in files()
        if (names := {n for n in file.identifiers if NAMES & set(n.lower().split("_"))})
    }
    assert not dialect, "\n".join(f"{path}: {sorted(names)}" for path, names in dialect.items())


def test_an_error_says_what_a_value_must_be():
    dialect = [
        f"{file.path}:{line}: {text}"
        for file in files()
        if file.path.parts[0] != "tests"
        for line, text in file.strings
        if IDIOM.search(text)
    ]
    assert not dialect, "\n".join(dialect)


def test_a_local_says_what_a_value_is():
    missing = [name for name in CLEAN if not (ROOT / name).exists()]
    assert not missing
    vague = [
        f"{file.path}:{line}: {name}"
        for file in files()
        if any(file.path.is_relative_to(name) for name in CLEAN)
        for line, name in file.local_names
        if name in LOCALS
    ]
    assert not vague, "\n".join(vague)


def test_a_class_name_stands_for_one_thing():
    paths = defaultdict(set)
    for file in files():
        if file.path.parts[0] not in ("examples", "tests"):
            for name in file.classes:
                paths[name].add(str(file.path))
    assert not {name: sorted(places) for name, places in paths.items() if len(places) > 1}


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
    seen = {name for _, name in locals_of(ast.walk(ast.parse(text)))}
    assert seen == {"found", "rest", "one", "given", "each", "held", "known", "wanted"}
