"""Kinds of values: how each is drawn, said in prose and meant in JSON.

It knows no sentences; texts are in `names.py`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

from training.draws import Draw
from training.names import TEXTS
from training.words import listed

STRING, NUMBER, INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}
BOOLEAN = {"type": "boolean"}
ISO_DATE = {"type": "string", "format": "date"}
ARTICLED = ("place", "room", "topic")  # kinds whose article is said, but no part of the value
SMALL = "zero one two three four five six seven eight nine ten eleven twelve".split()


@dataclass(frozen=True)
class Value:
    """What prose says and what JSON means by it; numbers keep their digits as `Decimal`."""

    said: str
    value: Any
    iso: str | None = None  # of a date


def draw(kind: str, d: Draw) -> Value:
    """A value of a kind as pattern files name it: `person`, `int 1 9`, `list food 2 4`."""
    name, *rest = kind.split()
    if name in TEXTS:
        said = TEXTS[name](d)
        return Value(said, re.sub("^(the|an?) ", "", said) if name in ARTICLED else said)
    return _OTHERS[name](d, rest)


def schema(kind: str) -> dict[str, Any]:
    name, *rest = kind.split()
    if name in ("int", "whole", "bigint", "year"):
        return INTEGER
    if name in ("num", "money"):
        return NUMBER
    if name == "bool":
        return BOOLEAN
    if name == "enum":
        return {"enum": rest}
    if name == "list":
        return {"type": "array", "items": schema(" ".join([rest[0], "0", "0"]))}
    return STRING


def _date(d: Draw, _: list[str]) -> Value:
    while True:
        value = _dated(d.random)
        if d.owns(value.said):
            return value


def _dated(r: Random) -> Value:
    year, month, day = r.randint(1950, 2035), r.randint(1, 12), r.randint(1, 28)
    name, iso = listed("month")[month - 1], f"{year}-{month:02d}-{day:02d}"
    end = {1: "st", 2: "nd", 3: "rd"}.get(0 if 10 < day < 14 else day % 10, "th")
    said, clear = r.choice(
        [
            (iso, True),
            (iso, True),
            (f"{day} {name} {year}", True),
            (f"{name} {day}, {year}", True),
            (f"{day:02d}.{month:02d}.{year}", True),
            (f"{day}{end} of {name} {year}", True),
            (f"{day} {name[:3]} {year}", True),
            (f"{day} {name}", False),  # no year, or no telling which is the month: as written only
            (f"{name} {day}{end}", False),
            (f"{day}/{month}/{year}", False),
        ]
    )
    return Value(said, said, iso if clear else None)


def _int(d: Draw, rest: list[str]) -> Value:
    low, high = (int(rest[0]), int(rest[1])) if len(rest) == 2 else (1, 60)
    number = d.random.randint(low, high)
    if high > 100 and d.chance(0.3):
        number = min(high, max(low, int(high ** d.random.random())))
    worded = 1 <= number < len(SMALL) and d.chance(0.15)
    return Value(SMALL[number] if worded else str(number), number)


def _whole(d: Draw, rest: list[str]) -> Value:
    """Like `int`, but always in digits."""
    number = d.random.randint(int(rest[0]), int(rest[1]))
    return Value(str(number), number)


def _bigint(d: Draw, _: list[str]) -> Value:
    number = d.random.randint(1, 10 ** d.random.randint(3, 7))
    if d.chance(0.5):
        number = round(number, -d.random.randint(1, 4)) or 1000
    return Value(f"{number:,}" if d.chance(0.35) else str(number), number)


def _num(d: Draw, rest: list[str]) -> Value:
    low, high = int(rest[0]), int(rest[1])
    places = d.random.choice([0, 1, 1, 1, 2])
    text = f"{low + d.random.random() * (high - low):.{places}f}"
    return Value(text, Decimal(text))


def _money(d: Draw, _: list[str]) -> Value:
    r = d.random
    whole = r.randint(1, 10 ** r.choice([1, 2, 2, 3, 3, 4]))
    cents = r.choice(["", "", "", ".5", ".50", ".99", f".{r.randint(0, 99):02d}"])
    thousands = whole >= 1000 and d.chance(0.3)
    return Value((f"{whole:,}" if thousands else str(whole)) + cents, Decimal(f"{whole}{cents}"))


def _year(d: Draw, _: list[str]) -> Value:
    year = d.random.randint(1500, 2030) if d.chance(0.3) else d.random.randint(1930, 2030)
    return Value(str(year), year)


def _enum(d: Draw, rest: list[str]) -> Value:
    word = d.random.choice(rest)
    return Value(word, word)


def _list(d: Draw, rest: list[str]) -> Value:
    kind, low, high = rest[0], int(rest[1]), int(rest[2])
    values = [draw(kind, d) for _ in range(d.random.randint(low, high))]
    return Value(joined([v.said for v in values], d.random), [v.value for v in values])


def joined(parts: Sequence[str], random: Random) -> str:
    """A list in prose."""
    *most, last = parts
    if not most:
        return last
    link = random.choice([" and ", " and ", " and ", ", ", ", and ", " & "])
    return ", ".join(most) + link + last


_OTHERS: dict[str, Callable[[Draw, list[str]], Value]] = {
    "date": _date,
    "int": _int,
    "whole": _whole,
    "bigint": _bigint,
    "num": _num,
    "money": _money,
    "year": _year,
    "enum": _enum,
    "list": _list,
    "bool": lambda d, _: Value("", d.chance(0.5)),
}
