"""Kinds of values: how each is drawn, how prose says it and what it means in JSON.

Texts come first: names, codes, titles, words of a list, by the names that pattern files give them
in `TEXTS`. The other kinds follow. Sentences are in `patterns.py`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

from training.words import Draw, listed, made_up

TITLES = "Mr Mrs Ms Mr. Mrs. Ms. Dr Dr. Professor".split()
TITLED = 0.04  # share of people who are named by one


def _person(d: Draw) -> str:
    if d.chance(TITLED):
        return _titled(d)
    first, last = d.raw(listed("first")), d.raw(listed("last"))
    form = d.random.random()
    if form < 0.78:
        return f"{first} {last}"
    if form < 0.86:
        return first
    if form < 0.92:
        return f"{first} {d.random.choice('ABCDEFGHJKLMNPRSTW')}. {last}"
    if form < 0.96:
        return f"{first} {last}-{d.raw(listed('last'))}"
    return f"{first} {d.random.choice(['van', 'de', 'von', 'al', 'da'])} {last}"


def _titled(d: Draw) -> str:
    title, last = d.random.choice(TITLES), d.raw(listed("last"))
    return f"{title} {last}" if d.chance(0.8) else f"{title} {d.raw(listed('first'))} {last}"


def _company(d: Draw) -> str:
    suffix = d.random.choice(
        "Ltd,Inc,GmbH,AG,Group,Bank,Foods,Systems,Labs,Motors,Energy,Media,Robotics,Pharma,Travel,"
        "Studios,Logistics,Textiles,Transport,Trading,Partners,Works,Books,Shop,Market".split(",")
    )
    head = d.raw(listed("last") if d.chance(0.5) else listed("title_adj"))
    form = d.random.random()
    if form < 0.6:
        return f"{head} {suffix}"
    if form < 0.75:
        return f"{head} & {d.raw(listed('last'))}"
    if form < 0.9:
        return made_up(d.random).capitalize()
    return f"{head} {d.raw(listed('noun')).capitalize()} {suffix}"


def _thing(d: Draw) -> str:
    noun = d.common(listed("thing"))
    return f"{d.random.choice(listed('thing_adj'))} {noun}" if d.chance(0.3) else noun


def _product(d: Draw) -> str:
    brand = d.raw(listed("title_adj") if d.chance(0.5) else listed("last"))
    form = d.random.random()
    if form < 0.4:
        return f"{brand} {d.random.randint(1, 9999)}"
    if form < 0.7:
        return f"{brand} {d.common(listed('thing'))}"
    if form < 0.85:
        return d.common(listed("thing"))
    return f"{brand} {d.random.choice('XZSTPRQ')}{d.random.randint(1, 99)}"


def _title(d: Draw) -> str:
    r = d.random
    noun, other = d.raw(listed("noun")).capitalize(), d.raw(listed("noun")).capitalize()
    adjective = d.raw(listed("title_adj"))
    return r.choice(
        [
            f"The {adjective} {noun}",
            f"{noun} and {other}",
            f"The {noun} of {d.raw(listed('city'))}",
            f"{adjective} {noun}",
            f"{noun} {r.randint(1, 2099)}",
            f"{adjective} {noun}s",
            f"A{'n' if noun[0] in 'AEIO' else ''} {noun} in {d.raw(listed('city'))}",
            noun,
        ]
    )


def _digits(d: Draw, n: int) -> str:
    return "".join(d.random.choices("0123456789", k=n))


def _code(d: Draw) -> str:
    r = d.random
    letters = "".join(r.choices("ABCDEFGHJKLMNPQRSTUVWXYZ", k=r.randint(1, 4)))
    digits, more = _digits(d, r.randint(2, 6)), _digits(d, r.randint(2, 4))
    return r.choice(
        [
            f"{letters}-{digits}",
            f"{letters}{digits}",
            f"{letters}-{more}-{digits}",
            f"{letters}/{digits}",
            f"{digits}-{more}",
            f"{letters}{digits}{r.choice('ABCDX')}",
            f"#{digits}",
            f"{made_up(r)[:5].upper()}-{more}",
        ]
    )


def _login(d: Draw) -> str:
    r, first, last = d.random, d.raw(listed("first")).lower(), d.raw(listed("last")).lower()
    return r.choice(
        [f"{first}{r.randint(1, 999)}", f"{first[0]}{last}", f"{first}_{last}", f"{first}.{last}"]
    )


def _domain(d: Draw) -> str:
    ending = d.random.choice("com com org net de io fr co.uk eu".split())
    return f"{d.raw(listed('last')).lower().replace(' ', '')}.{ending}"


def _host(d: Draw) -> str:
    r = d.random
    head = r.choice("web db mail api app cache node build auth print proxy".split())
    return r.choice([f"{head}-{r.randint(1, 99)}", f"{head}{r.randint(1, 9)}", made_up(r)])


def _phone(d: Draw) -> str:
    return d.random.choice(
        [
            f"0{_digits(d, 3)} {_digits(d, 6)}",
            f"+{_digits(d, 2)} {_digits(d, 3)} {_digits(d, 7)}",
            f"{_digits(d, 3)}-{_digits(d, 4)}",
            f"{_digits(d, 3)}-{_digits(d, 3)}-{_digits(d, 4)}",
            f"0{_digits(d, 4)}/{_digits(d, 5)}",
            _digits(d, 7),
        ]
    )


def _street(d: Draw) -> str:
    r = d.random
    name = d.raw(r.choice([listed("last"), listed("title_adj"), listed("city")]))
    kind = r.choice("Street Road Lane Avenue Square Way Drive Court".split())
    number = f"{r.randint(1, 240)}{r.choice(['', '', '', 'a', 'b'])}"
    return r.choice([f"{number} {name} {kind}", f"{name} {kind} {number}"])


def _time(d: Draw) -> str:
    r = d.random
    hour, minute = r.randint(0, 23), r.choice([0, 15, 30, 45, r.randint(0, 59)])
    return r.choice(
        [
            f"{hour:02d}:{minute:02d}",
            f"{hour}:{minute:02d}",
            f"{1 + hour % 12}{r.choice([' ', ''])}{r.choice(['am', 'pm'])}",
            f"{1 + hour % 12}:{minute:02d} {r.choice(['am', 'pm', 'a.m.', 'p.m.'])}",
        ]
    )


def _dish(d: Draw) -> str:
    form = d.random.random()
    food = d.common(listed("food"))
    kind = d.random.choice("soup,pie,salad,stew,curry,cake,casserole,risotto,pancakes".split(","))
    if form < 0.5:
        return f"{food.removesuffix('s')} {kind}"
    return made_up(d.random) if form < 0.6 else f"{food} with {d.common(listed('food'))}"


def _hotel(d: Draw) -> str:
    r, head = d.random, d.raw(listed("title_adj"))
    kind = r.choice(
        "Hotel Inn Lodge House Hall Palace Garden Kitchen Arms Arena Club Lounge".split()
    )
    noun = d.raw(listed("noun")).capitalize()
    return r.choice([f"{head} {noun}", f"{d.raw(listed('last'))} {kind}", f"{kind} {noun}", noun])


def _team(d: Draw) -> str:
    city, mark = d.raw(listed("city")), d.random.choice(["FC", "SV", "AC", "Dynamo", "Real"])
    ending = d.random.choice(["United", "City", "Rovers", "Bears", "Eagles", "Wolves", "Stars"])
    return d.random.choice([f"{mark} {city}", f"{city} {ending}", city])


def _car(d: Draw) -> str:
    r = d.random
    makes = (
        "Fiat Ford Opel Volvo Toyota Honda Skoda Renault Mazda Kia Audi Seat Dacia Lancia".split()
    )
    models = "Corsa Focus Punto Civic Golf Clio Fabia Ibiza Yaris Panda Astra Octavia Tipo".split()
    form = [f"{d.raw(makes)} {d.raw(models)}", f"{d.raw(makes)} {r.randint(1, 999)}", d.raw(makes)]
    return r.choices(form, [0.5, 0.3, 0.2])[0]


def _flight(d: Draw) -> str:
    gap = d.random.choice(["", " "])
    return f"{made_up(d.random)[:2].upper()}{gap}{d.random.randint(1, 9999)}"


def _stop(d: Draw) -> str:
    kind = d.random.choice(["Street", "Square", "Station", "Gate", "Park"])
    return f"{d.raw(listed('last'))} {kind}"


def _file(d: Draw) -> str:
    r = d.random
    head = d.raw(listed("noun")).lower()
    tail = r.choice(
        ["", f"_{r.randint(1, 2030)}", f"-{d.raw(listed('noun')).lower()}", f"_v{r.randint(1, 9)}"]
    )
    return f"{head}{tail}.{r.choice('pdf txt csv docx png zip xlsx json py mp3'.split())}"


def _email(d: Draw) -> str:
    return f"{_login(d)}@{_domain(d)}"


def _picked(options: Sequence[str]) -> Callable[[Draw], str]:
    return lambda d: d.random.choice(options)


def _open(options: Sequence[str]) -> Callable[[Draw], str]:
    return lambda d: d.word(options)


def _common(options: Sequence[str]) -> Callable[[Draw], str]:
    return lambda d: d.common(options)


def _owned(make: Callable[[Draw], str]) -> Callable[[Draw], str]:
    return lambda d: d.ours(lambda: make(d))


# Kinds whose words are those of the list of their name.
_OPEN = """first last city drug software"""
_COMMON = """country nation language animal bird job food plant material color sport hobby subject
disease department industry"""
_PICKED = """genre weekday month defect topic task problem room place"""

TEXTS: dict[str, Callable[[Draw], str]] = {
    "person": _owned(_person),
    "titled": _owned(lambda d: _titled(d) if d.chance(0.8) else d.raw(listed("last"))),
    "company": _owned(_company),
    "thing": _thing,
    "product": _owned(_product),
    "title": _owned(_title),
    "code": _owned(_code),
    "login": _owned(_login),
    "email": _owned(_email),
    "phone": _owned(_phone),
    "street": _owned(_street),
    "time": _owned(_time),
    "dish": _owned(_dish),
    "hotel": _owned(_hotel),
    "team": _owned(_team),
    "car": _owned(_car),
    "stop": _owned(_stop),
    "file": _owned(_file),
    "host": _owned(_host),
    "school": _owned(lambda d: f"{d.raw(listed('city'))} {d.random.choice(['College', 'School'])}"),
    "url": _owned(lambda d: f"www.{_domain(d)}"),
    "folder": _owned(lambda d: f"/{d.raw(listed('noun')).lower()}/{d.raw(listed('noun')).lower()}"),
    "version": _owned(
        lambda d: ".".join(str(d.random.randint(0, 29)) for _ in range(d.random.choice([2, 3])))
    ),
    "ip": _owned(lambda d: ".".join(str(d.random.randint(0, 255)) for _ in range(4))),
    "iban": _owned(
        lambda d: f"{made_up(d.random)[:2].upper()}{_digits(d, 2)} {_digits(d, 4)} {_digits(d, 4)}"
    ),
    "isbn": _owned(
        lambda d: f"978-{_digits(d, 1)}-{_digits(d, 4)}-{_digits(d, 4)}-{_digits(d, 1)}"
    ),
    "flight": _owned(_flight),
    "gate": _owned(lambda d: f"{d.random.choice('ABCDEFG')}{d.random.randint(1, 60)}"),
    "seat": _owned(lambda d: f"{d.random.randint(1, 50)}{d.random.choice('ABCDEF')}"),
    "road": _owned(lambda d: f"{d.random.choice('ABM')}{d.random.randint(1, 999)}"),
    "plate": _owned(
        lambda d: (
            f"{made_up(d.random)[:2].upper()}{d.random.choice('- ')}{d.random.randint(1, 9999)}"
        )
    ),
    "secret": _owned(
        lambda d: f"{made_up(d.random)[:5]}{d.random.randint(1, 999)}{made_up(d.random)[:4]}"
    ),
    "pin": _owned(lambda d: _digits(d, d.random.choice([4, 5, 6]))),
    "score": _picked([f"{a}:{b}" for a in range(1, 10) for b in range(a)]),
    "room_code": _owned(
        lambda d: f"{d.random.choice(['', *'ABCDEFGHKLMR'])}{d.random.randint(1, 999)}"
    ),
    "symbol": _picked([a + b for a in "BCDEFGHKLMNPRSTUXZ" for b in ["", *"aeirmn"]]),
    "word": _open(listed("noun")),
    "adjective": _common(listed("verdict")),
    **{name: _open(listed(name)) for name in _OPEN.split()},
    **{name: _common(listed(name)) for name in _COMMON.split()},
    **{name: _picked(listed(name)) for name in _PICKED.split()},
}


STRING, NUMBER, INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}
BOOLEAN = {"type": "boolean"}
ISO_DATE = {"type": "string", "format": "date"}
ARTICLED = ("place", "room", "topic")  # kinds whose article prose has, but the value has not
SMALL = "zero one two three four five six seven eight nine ten eleven twelve".split()


@dataclass(frozen=True)
class Value:
    """A value as prose has it and as JSON has it; numbers keep their digits as `Decimal`."""

    text: str
    value: Any
    iso: str | None = None  # of a date


def draw(kind: str, d: Draw) -> Value:
    """Draw a value of a kind, named as in pattern files: `person`, `int 1 9`, `list food 2 4`."""
    name, *rest = kind.split()
    if name in TEXTS:
        text = TEXTS[name](d)
        return Value(text, re.sub("^(the|an?) ", "", text) if name in ARTICLED else text)
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
        if d.owns(value.text):
            return value


def _dated(r: Random) -> Value:
    year, month, day = r.randint(1950, 2035), r.randint(1, 12), r.randint(1, 28)
    name, iso = listed("month")[month - 1], f"{year}-{month:02d}-{day:02d}"
    end = {1: "st", 2: "nd", 3: "rd"}.get(0 if 10 < day < 14 else day % 10, "th")
    text, clear = r.choice(
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
    return Value(text, text, iso if clear else None)


def _int(d: Draw, rest: list[str]) -> Value:
    low, high = (int(rest[0]), int(rest[1])) if len(rest) == 2 else (1, 60)
    number = d.random.randint(low, high)
    if high > 100 and d.chance(0.3):
        number = min(high, max(low, int(high ** d.random.random())))
    worded = 1 <= number < len(SMALL) and d.chance(0.15)
    return Value(SMALL[number] if worded else str(number), number)


def _whole(d: Draw, rest: list[str]) -> Value:
    """Draw an integer that is always written in digits."""
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
    return Value(joined([v.text for v in values], d.random), [v.value for v in values])


def joined(parts: Sequence[str], random: Random) -> str:
    """Return a list in prose."""
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
