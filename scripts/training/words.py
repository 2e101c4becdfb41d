"""Words that values are made of: lists of real ones, and made-up ones without end."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random

LISTS = Path(__file__).parent / "lists"
CONSONANT, VOWEL = "bcdfghjklmnprstvwz", "aeiou"
ACCENTED = {
    "a": "àáâãäåāăąæ",
    "c": "çćč",
    "d": "ďđð",
    "e": "èéêëēėęě",
    "g": "ğģ",
    "i": "ìíîïīı",
    "l": "łľ",
    "n": "ñńňņ",
    "o": "òóôõöøōőœ",
    "r": "řŕ",
    "s": "šśşșß",
    "t": "ťțþ",
    "u": "ùúûüūůűų",
    "y": "ýÿ",
    "z": "žźż",
}


@cache
def listed(name: str) -> tuple[str, ...]:
    """The words of a list in `lists/words.txt`: parted by commas where there are any."""
    body = _sections("words.txt")[name]
    parts = body.split(",") if "," in body else body.split()
    return tuple(" ".join(part.split()) for part in parts)


@cache
def phrases(name: str) -> tuple[str, ...]:
    """The phrases of a list in `lists/phrases.txt`, one a line."""
    lines = _sections("phrases.txt")[name].strip("\n").split("\n")
    return tuple(line.replace("\\n", "\n") for line in lines)


@cache
def _sections(file: str) -> dict[str, str]:
    parts = (LISTS / file).read_text(encoding="utf-8").split("== ")[1:]
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in parts}


def made_up(random: Random) -> str:
    """A word that no list holds, mostly pronounceable, in lower case."""
    kind = random.random()
    if kind < 0.55:
        return "".join(random.choices(listed("syllable"), k=random.choice([2, 2, 3, 3, 4])))
    if kind < 0.85:
        letters = [
            random.choice(CONSONANT if i % 2 else VOWEL + CONSONANT if i == 0 else VOWEL)
            for i in range(random.randint(4, 9))
        ]
        return "".join(letters)
    return "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(3, 9)))


def spliced(words: Sequence[str], random: Random) -> str:
    """The beginning of one word of a list and the end of another: new, but like them."""
    left, right = random.choice(words), random.choice(words)
    return left[: random.randint(2, max(2, len(left) - 1))] + right[len(right) // 2 :].lower()


def accented(word: str, random: Random) -> str:
    """One or two of its letters as other languages than English have them."""
    letters = list(word)
    places = [i for i, letter in enumerate(letters) if letter.lower() in ACCENTED]
    for i in random.sample(places, min(len(places), random.choice([1, 1, 2]))):
        other = random.choice(ACCENTED[letters[i].lower()])
        letters[i] = other.upper() if letters[i].isupper() else other
    return "".join(letters)
