"""Prose from patterns: sentences filled with values, and the noise that people put around them."""

import re
from collections.abc import Mapping
from random import Random
from typing import Any

from training import kinds
from training.draws import Draw
from training.kinds import Value
from training.patterns import Domain, Field, Sentence
from training.words import phrases

SMALL = frozenset("It My Our On In At For He She They We There This With When".split())
WRAPPERS = [
    "{v} (not {w})",
    "{v} (formerly {w})",
    "{v}, not {w},",
    "{v} instead of {w}",
    "{v} rather than {w}",
    "{w}, sorry, {v}",
    "{w}, no, {v}",
    "not {w} but {v}",
]
WRAPPED = (
    "person first last city company thing product code hotel num money job time date"
).split()
CONTRACTIONS = {
    " is not ": " isn't ",
    " was not ": " wasn't ",
    " has not ": " hasn't ",
    "I am ": "I'm ",
    "We are ": "We're ",
    " does not ": " doesn't ",
    "It is ": "It's ",
    "He is ": "He's ",
    "She is ": "She's ",
}
SWAPS = {
    " euros": [" euros", " euros", " EUR", " €", " dollars", " pounds", " USD", " francs"],
    " percent": [" percent", " percent", " %", "%", " per cent"],
    " km/h": [" km/h", " kilometres per hour", " kph"],
    " kg": [" kg", " kg", "kg", " kilos", " kilograms"],
    " km ": [" km ", " km ", " kilometres ", " kilometers "],
    " cm ": [" cm ", " centimetres "],
    " degrees": [" degrees", " degrees", " °C", " C", " degrees Celsius"],
    " minutes": [" minutes", " minutes", " min", " mins"],
    " people": [" people", " people", " persons"],
    " bought ": [" bought ", " bought ", " purchased ", " got "],
    " costs ": [" costs ", " costs ", " is priced at ", " goes for "],
    " works ": [" works ", " works ", " is working "],
    " begins ": [" begins ", " starts "],
    " wants ": [" wants ", " would like "],
    " lives ": [" lives ", " lives ", " resides "],
    " called ": [" called ", " called ", " named "],
    " yesterday": [" yesterday", " today", " last week", " this morning"],
}


def fill(
    sentence: Sentence, domain: Domain, values: Mapping[str, Value], draw: Draw, wrap: bool
) -> str:
    """A sentence with the values in its slots."""
    parts = reworded(sentence.parts, draw)
    wrapped = draw.random.randrange(1, len(parts), 2) if wrap and len(parts) > 1 else -1
    for i in range(1, len(parts), 2):
        name, told, ways = parts[i].partition("?")
        if name.startswith("~"):
            parts[i] = kinds.draw(name[1:], draw).said
            parts[i - 1] = with_article(parts[i - 1], parts[i])
            continue
        value, field = values[name], domain.fields[name]
        parts[i] = told_as(value.value, ways) if told else value.said
        if i == wrapped and not told and field.kind.split()[0] in WRAPPED:
            other = kinds.draw(field.kind, draw).said
            parts[i] = draw.random.choice(WRAPPERS).format(v=value.said, w=other)
        if field.kind == "money" and not re.match(" (euro|dollar|percent|{)", parts[i + 1]):
            parts[i] = priced(parts[i], draw.random)
        parts[i - 1] = with_article(parts[i - 1], parts[i])
    text = "".join(parts).replace(",,", ",").replace(",.", ".")
    begins_with_value = parts[0] == "" and len(parts) > 1 and "?" not in sentence.parts[1]
    if text.startswith("not ") or not (begins_with_value or draw.chance(0.03)):
        text = text[:1].upper() + text[1:]
    return text


def with_article(before: str, value: str) -> str:
    """What stands before a value, with `a` or `an`, or without a second `the`."""
    if re.search(r"\b[Aa] $", before) and value[:1] in "aeiouAEIO":
        return before[:-1] + "n "
    if re.search(r"\b[Tt]he $", before) and value.startswith(("The ", "A ", "An ")):
        return before[:-4]
    return before


def reworded(parts: list[str], draw: Draw) -> list[str]:
    """A sentence's own words, some of them said in another way; its slots as they are."""
    swap, contract, parts = draw.chance(0.5), draw.chance(0.3), list(parts)
    for i in range(0, len(parts), 2):
        for old, new in SWAPS.items() if swap else ():
            if old in parts[i]:
                parts[i] = parts[i].replace(old, draw.random.choice(new))
        for old, new in CONTRACTIONS.items() if contract else ():
            parts[i] = parts[i].replace(old, new)
    return parts


def told_as(value: Any, ways: str) -> str:
    """The phrase for a truth (`yes|no`) or for one of some words (`open=...|closed=...`)."""
    options = ways.split("|")
    if isinstance(value, bool):
        return options[0 if value else 1]
    return dict(option.split("=", 1) for option in options)[value]


def priced(said: str, random: Random) -> str:
    form = random.random()
    if form < 0.7:
        return said
    return (
        f"{random.choice('$€£')}{said}" if form < 0.9 else f"{said} {random.choice(['EUR', '€'])}"
    )


def table(field: Field, draw: Draw) -> Value:
    """A value of kind `rows`: every row said in the same way."""
    way = draw.random.choice(field.rows)
    rows, said = [], []
    for _ in range(draw.random.randint(1, 3)):
        row = {name: kinds.draw(kind, draw) for name, kind in field.columns.items()}
        text = way
        for name, value in row.items():
            text = text.replace(f"<{name}>", value.said)
        said.append(text)
        rows.append({name: value.value for name, value in row.items()})
    return Value(kinds.joined(said, draw.random), rows)


def filler(draw: Draw) -> str:
    """A sentence beside the point."""
    sentence = Sentence(draw.random.choice(phrases("filler")), False)
    return fill(sentence, Domain("", {}, {}, ()), {}, draw, False)


def ended(sentence: str) -> str:
    """A sentence before another, with a mark between them: "from Omar We will see" names who?"""
    return f"{sentence}." if sentence[-1].isalnum() else sentence


def ruffled(sentences: list[str], draw: Draw) -> str:
    """Sentences as one text, with the openers, slips and shortenings of people."""
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
