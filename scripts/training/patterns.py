"""Patterns of prose: domains, their fields and sentences, and sentences filled with values.

Domains are read from `patterns/*.txt`, of which exams are made, and from `patterns/trained/*.txt`,
which only training sees: more sentences of the same domains, and further domains. So exams stay the
same while training grows. A domain begins with `== an invoice`. Its fields follow, one a line, as
`key, synonyms...: kind`, then its sentences: `-` for one that can stand alone, `+` for one that
follows another. In a sentence `{key}` is a field, `{key?yes text|no text}` a field whose value is
not named, and `{~kind}` a value that no prompt asks for. A field of kind `rows` lists its columns
and, after a colon, ways to say a row.
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from random import Random
from typing import Any

from training import kinds
from training.kinds import Value
from training.words import Draw, forms, phrases

HELD_OUT = 10  # one sentence in ten is never trained on
_SLOT = re.compile(r"\{([^{}]*)\}")
FOLDER = Path(__file__).parent / "patterns"
TRAINED = FOLDER / "trained"  # what no exam asks


@dataclass(frozen=True)
class Field:
    """A field of a domain, whose value its sentences can state."""

    names: tuple[str, ...]  # keys that may ask for it; the first is the one in sentences
    kind: str
    rows: tuple[str, ...] = ()  # ways to say a row, if it is a table

    @property
    def columns(self) -> dict[str, str]:
        """The columns of a table with their kinds."""
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
    """A domain: the subject of some sentences, with its fields."""

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
    """Read the domains of exams, in the order of their files' names, or these and training's."""
    found = {domain.title: domain for domain in domains(False)} if training else {}
    for path in sorted((TRAINED if training else FOLDER).glob("*.txt")):
        for part in path.read_text(encoding="utf-8").split("== ")[1:]:
            title, *lines = part.splitlines()
            found[title] = _domain(title, lines, found.get(title), examined=not training)
    return tuple(found.values())


def _domain(title: str, lines: list[str], known: Domain | None, examined: bool) -> Domain:
    """Parse the lines of a domain, in addition to the `known` domain of that title."""
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


SMALL = frozenset("It My Our On In At For He She They We There This With When".split())
WRAPPED = (
    "person first last city company thing product code hotel num money job time date"
).split()


def fill(
    sentence: Sentence, domain: Domain, values: Mapping[str, Value], draw: Draw, wrap: bool
) -> str:
    """Return a sentence with the values in its slots."""
    parts = reworded(sentence.parts, draw)
    wrapped = draw.random.randrange(1, len(parts), 2) if wrap and len(parts) > 1 else -1
    for i in range(1, len(parts), 2):
        name, phrased, ways = parts[i].partition("?")
        if name.startswith("~"):
            parts[i] = kinds.draw(name[1:], draw).text
            parts[i - 1] = with_article(parts[i - 1], parts[i])
            continue
        value, field = values[name], domain.fields[name]
        parts[i] = phrase_of(value.value, ways) if phrased else value.text
        if i == wrapped and not phrased and field.kind.split()[0] in WRAPPED:
            other = kinds.draw(field.kind, draw).text
            parts[i] = draw.random.choice(forms("wrappers")).format(v=value.text, w=other)
        if field.kind == "money" and not re.match(" (euro|dollar|percent|{)", parts[i + 1]):
            parts[i] = priced(parts[i], draw.random)
        parts[i - 1] = with_article(parts[i - 1], parts[i])
    text = "".join(parts).replace(",,", ",").replace(",.", ".")
    begins_with_value = parts[0] == "" and len(parts) > 1 and "?" not in sentence.parts[1]
    if text.startswith("not ") or not (begins_with_value or draw.chance(0.03)):
        text = text[:1].upper() + text[1:]
    return text


def with_article(before: str, value: str) -> str:
    """Return the text before a value, with `a` or `an`, or without a second `the`."""
    if re.search(r"\b[Aa] $", before) and value[:1] in "aeiouAEIO":
        return before[:-1] + "n "
    if re.search(r"\b[Tt]he $", before) and value.startswith(("The ", "A ", "An ")):
        return before[:-4]
    return before


def reworded(parts: list[str], draw: Draw) -> list[str]:
    """Return the parts of a sentence, with some words replaced by synonyms and slots unchanged."""
    swap, contract, parts = draw.chance(0.5), draw.chance(0.3), list(parts)
    for i in range(0, len(parts), 2):
        for old, new in forms("swaps").items() if swap else ():
            if old in parts[i]:
                parts[i] = parts[i].replace(old, draw.random.choice(new))
        for old, new in forms("contractions").items() if contract else ():
            parts[i] = parts[i].replace(old, new)
    return parts


def phrase_of(value: Any, ways: str) -> str:
    """Return the phrase for a boolean (`yes|no`) or for a word (`open=...|closed=...`)."""
    options = ways.split("|")
    if isinstance(value, bool):
        return options[0 if value else 1]
    return dict(option.split("=", 1) for option in options)[value]


def priced(amount: str, random: Random) -> str:
    form = random.random()
    if form < 0.7:
        return amount
    if form < 0.9:
        return f"{random.choice('$€£')}{amount}"
    return f"{amount} {random.choice(['EUR', '€'])}"


def table(field: Field, draw: Draw) -> Value:
    """Draw a value of kind `rows`, whose rows are all written in the same way."""
    way = draw.random.choice(field.rows)
    rows, texts = [], []
    for _ in range(draw.random.randint(1, 3)):
        row = {name: kinds.draw(kind, draw) for name, kind in field.columns.items()}
        text = way
        for name, value in row.items():
            text = text.replace(f"<{name}>", value.text)
        texts.append(text)
        rows.append({name: value.value for name, value in row.items()})
    return Value(kinds.joined(texts, draw.random), rows)


def filler(draw: Draw) -> str:
    """Draw a sentence that is not about the domain."""
    sentence = Sentence(draw.random.choice(phrases("filler")), False)
    return fill(sentence, Domain("", {}, {}, ()), {}, draw, False)


def ended(sentence: str) -> str:
    """Return a sentence that ends with a mark, so that its last value ends before the next one."""
    return f"{sentence}." if sentence[-1].isalnum() else sentence


def ruffled(sentences: list[str], draw: Draw) -> str:
    """Join sentences to one text, with the openers, slips and abbreviations of people."""
    random, sentences = draw.random, list(sentences)
    if draw.chance(0.1):
        opener = random.choice(phrases("opener"))
        head, space, tail = sentences[0].partition(" ")
        if head in SMALL and not opener.endswith((": ", "! ")):
            head = head.lower()
        sentences[0] = opener + head + space + tail
    if draw.chance(0.07):
        sentences.insert(random.choice([0, len(sentences)]), filler(draw))
    if draw.chance(0.1):
        sentences.append(random.choice(phrases("closer")))
    joint = random.choice(["\n", "; ", " - "]) if draw.chance(0.05) else " "
    *before, last = sentences
    text = joint.join([*map(ended, before), last])
    if draw.chance(0.06):
        text = text.rstrip(".")
    return text
