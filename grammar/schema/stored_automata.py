"""Automata of formats that are read from files, since building one takes up to 200 ms.

A file is compressed JSON: the pattern's digest, the edges and the final states. A file of another
pattern, or of another version of the Unicode properties that it names, is not used.
`python tests/grammar/schema/test_stored_automata.py` writes the files anew.
"""

import gzip
import json
from hashlib import sha256
from pathlib import Path
from unicodedata import unidata_version

from dlm.grammar.regex.automaton import Automaton

_FOLDER = Path(__file__).with_name("automata")


def file_of(name: str) -> Path:
    """Return where the automaton of a format is stored, if it is."""
    return _FOLDER / f"{name}.json.gz"


def stored(pattern: str, automaton: Automaton) -> bytes:
    """Return the content of the file of `automaton`, which is that of `pattern`."""
    content = _digest(pattern), automaton.edges, sorted(automaton.final)
    return gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0)


def stored_automaton(pattern: str, file: Path) -> Automaton | None:
    """Return the automaton of `pattern` from `file`; None if that has none, or another's."""
    if not file.exists():
        return None
    digest, edges, final = json.loads(gzip.decompress(file.read_bytes()))
    if digest != _digest(pattern):
        return None
    return Automaton(tuple(tuple(map(tuple, state)) for state in edges), frozenset(final))


def _digest(pattern: str) -> str:
    version = unidata_version if r"\p{" in pattern else ""
    return sha256((pattern + version).encode()).hexdigest()
