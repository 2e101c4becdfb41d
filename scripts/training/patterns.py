"""The sentence patterns: domains, their fields, and what can be said of them.

Read from `patterns/*.txt`, which exams are made of, and from `patterns/trained/*.txt`, which only
training sees: more sentences of the same domains, and further domains. So exams stay what they are
while training grows. A domain opens with `== an invoice`; then its fields, one a line, as
`key, synonyms...: kind`; then sentences, `-` such as stand alone, `+` such as follow one. In a
sentence `{key}` is a field, `{key?yes text|no text}` a field that is told without naming its value,
and `{~kind}` a value that nobody asks for. A field of kind `rows` lists its columns and, behind a
colon, ways to say a row. It draws no values.
"""

import re
import zlib
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

HELD_OUT = 10  # one sentence in so many is never trained on
_SLOT = re.compile(r"\{([^{}]*)\}")
FOLDER = Path(__file__).parent / "patterns"
TRAINED = FOLDER / "trained"  # what no exam asks


@dataclass(frozen=True)
class Field:
    """Something that a domain's sentences can say."""

    names: tuple[str, ...]  # keys that may ask for it; the first is the one in sentences
    kind: str
    rows: tuple[str, ...] = ()  # ways to say a row, if it is a table

    @property
    def columns(self) -> dict[str, str]:
        """Column and kind of a table's columns."""
        return dict(part.split("=") for part in self.kind.split()[1:])


@dataclass(frozen=True)
class Sentence:
    """A pattern; `parts` are text and slots in turns, beginning with text."""

    text: str
    follows: bool  # it cannot come first
    examined: bool = True  # it may be one of those that are held out

    @cached_property
    def parts(self) -> list[str]:
        return _SLOT.split(self.text)

    @cached_property
    def fields(self) -> list[str]:
        slots = (slot.partition("?")[0] for slot in self.parts[1::2])
        return [name for name in slots if not name.startswith("~")]

    @cached_property
    def held_out(self) -> bool:
        return self.examined and zlib.crc32(self.text.encode()) % HELD_OUT == 0


@dataclass(frozen=True)
class Domain:
    """What a kind of text is about."""

    title: str  # with its article
    fields: dict[str, Field]
    groups: dict[str, tuple[str, ...]]  # name of a nested object -> its fields
    sentences: tuple[Sentence, ...]

    def choose(self, held_out: bool, follows: bool) -> list[Sentence]:
        return self._parts[held_out, follows]

    @cached_property
    def _parts(self) -> dict[tuple[bool, bool], list[Sentence]]:
        parts = {(held, follows): [] for held in (False, True) for follows in (False, True)}
        for sentence in self.sentences:
            parts[sentence.held_out, sentence.follows].append(sentence)
        return parts


@cache
def domains(training: bool, /) -> tuple[Domain, ...]:
    """All domains of exams, in the order of their files' names, or those and more of training."""
    found = {domain.title: domain for domain in domains(False)} if training else {}
    for path in sorted((TRAINED if training else FOLDER).glob("*.txt")):
        for part in path.read_text(encoding="utf-8").split("== ")[1:]:
            title, *lines = part.splitlines()
            found[title] = _domain(title, lines, found.get(title), examined=not training)
    return tuple(found.values())


def _domain(title: str, lines: list[str], known: Domain | None, examined: bool) -> Domain:
    """A domain of its lines, behind what is `known` of it."""
    fields = dict(known.fields) if known else {}
    groups = dict(known.groups) if known else {}
    sentences = list(known.sentences) if known else []
    for line in lines:
        if line.startswith(("- ", "+ ")):
            sentences.append(Sentence(line[2:].strip(), line[0] == "+", examined))
        elif line.startswith("group "):
            name, members = line.removeprefix("group ").split(":")
            groups[name.strip()] = tuple(m.strip() for m in members.split(","))
        elif line.strip():
            names, _, kind = line.partition(":")
            kind, _, rows = kind.strip().partition(" : ")
            keys = tuple(name.strip() for name in names.split(","))
            ways = tuple(row.strip() for row in rows.split("|")) if rows else ()
            fields[keys[0]] = Field(keys, kind, ways)
    domain = Domain(title, fields, groups, tuple(sentences))
    for sentence in sentences:
        if unknown := set(sentence.fields) - fields.keys():
            raise ValueError(f"{title}: {sentence.text!r} says {unknown}, which are no fields")
    return domain
