"""Automata of formats in files: they are current, and those that are built.

`python tests/grammar/schema/test_stored_automata.py` writes the files anew.
"""

from unicodedata import unidata_version

import pytest

from dlm.grammar.limits import TooMuchEffortError, at_most
from dlm.grammar.regex.patterns import automaton_of
from dlm.grammar.schema import format_texts, stored_automata
from dlm.grammar.schema.formats import PATTERNS
from dlm.grammar.schema.stored_automata import file_of, stored, stored_automaton

LARGE = 100  # states, from which on an automaton is stored
UNICODE = "14.0.0"  # the version of the files' Unicode properties: that of Python 3.11


def is_stored(pattern, automaton):
    """Whether an automaton should have a file for this Python's version of Unicode."""
    current = r"\p{" not in pattern or unidata_version == UNICODE
    return len(automaton.edges) >= LARGE and current


@pytest.mark.parametrize("name", PATTERNS)
def test_a_format_has_the_automaton_of_its_pattern(name):
    built = automaton_of(PATTERNS[name], whole=True)
    assert format_texts(name)[0] == built
    from_file = stored_automaton(PATTERNS[name], file_of(name))
    assert from_file == (built if is_stored(PATTERNS[name], built) else None)


def test_every_file_is_that_of_a_format():
    names = {path.name for path in file_of("date-time").parent.iterdir()}
    assert names <= {file_of(name).name for name in PATTERNS}


def test_a_file_of_another_pattern_is_not_used(tmp_path):
    file, automaton = tmp_path / "a.json.gz", automaton_of("a|b{3}", whole=True)
    file.write_bytes(stored("a|b{3}", automaton))
    assert stored_automaton("a|b{3}", file) == automaton
    assert stored_automaton("a|b{4}", file) is None


def test_a_file_of_another_unicode_version_is_not_used(tmp_path, monkeypatch):
    letters, digits = r"\p{Lu}+", "[0-9]+"
    for name, pattern in (("letters", letters), ("digits", digits)):
        (tmp_path / name).write_bytes(stored(pattern, automaton_of(pattern, whole=True)))
    monkeypatch.setattr(stored_automata, "unidata_version", "0.0.0")
    assert stored_automaton(letters, tmp_path / "letters") is None
    assert stored_automaton(digits, tmp_path / "digits") == automaton_of(digits, whole=True)


def test_the_first_use_of_a_stored_format_builds_nothing():
    with at_most(0):
        assert len(format_texts("iri-reference")[0].edges) >= LARGE
        with pytest.raises(TooMuchEffortError):
            automaton_of("[a-z]{3}-not-seen-before", whole=True)


if __name__ == "__main__":
    if unidata_version != UNICODE:
        raise SystemExit(f"the files are for Unicode {UNICODE}, got {unidata_version}")
    for each, pattern in PATTERNS.items():
        automaton = automaton_of(pattern, whole=True)
        file_of(each).unlink(missing_ok=True)
        if is_stored(pattern, automaton):
            file_of(each).parent.mkdir(exist_ok=True)
            file_of(each).write_bytes(stored(pattern, automaton))
