"""Names that a plugin needs, looked up in made-up source files."""

import pytest

from dlm.integrations.needs import Need, NeededFunction, NeededVariable, lacking

NEEDS = (
    Need(
        file="a.py",
        name="Engine",
        methods={"step": ("batch", "logits"), "made": ("cls", "config")},
        attributes=("size", "kind", "limit"),
        calls=("finish",),
    ),
    NeededFunction(file="a.py", name="load", parameters=("path",)),
    NeededVariable(file="b/c.py", name="TABLE"),
)
SOURCE = """
class Engine:
    kind: str
    limit = 7

    @classmethod
    def made(cls, config, more=None): ...

    def step(self, batch, logits, states):
        self.size = 1
        self.queue.finish(batch)

async def load(path, **more): ...
"""


@pytest.fixture
def package(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "a.py").write_text(SOURCE)
    (tmp_path / "b" / "c.py").write_text("TABLE: dict = {}\n")
    return tmp_path


def test_nothing_is_lacking_where_all_needs_are(package):
    assert lacking(package, NEEDS) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("a.py", "class Engine", "class Other", "Engine in a.py"),
        ("a.py", "def step", "def steps", "Engine.step"),
        (
            "a.py",
            "batch, logits",
            "logits, batch",
            "Engine.step(batch, logits), whose parameters are logits",
        ),
        ("a.py", "self.size", "self.sizes", "Engine.size"),
        ("a.py", "limit = 7", "limits = 7", "Engine.limit"),
        ("a.py", "queue.finish", "queue.end", "a call of finish in Engine"),
        ("a.py", "def load(path", "def load(file", "load(path), whose parameters are file"),
        ("a.py", "def load", "def loads", "load in a.py"),
        ("a.py", "class Engine:", "class Engine", "a.py cannot be read"),
        ("b/c.py", "TABLE", "TABLES", "TABLE in b/c.py"),
    ],
)
def test_what_is_lacking_is_named(package, file, old, new, problem):
    path = package / file
    source = path.read_text()
    assert old in source
    path.write_text(source.replace(old, new))
    (found,) = lacking(package, NEEDS)
    assert problem in found


def test_a_file_that_is_not_there_is_named(package):
    (package / "b" / "c.py").unlink()
    assert lacking(package, NEEDS) == ["b/c.py cannot be read"]
