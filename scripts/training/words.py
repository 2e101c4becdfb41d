"""Words that values are made of: lists of real ones, made-up ones, and random draws of both.

Every string belongs to one of two halves: training's, or the half that is held out.
"""

import json
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Literal

LISTS = Path(__file__).parent / "lists"
CONSONANT, VOWEL = "bcdfghjklmnprstvwz", "aeiou"


@cache
def listed(name: str) -> tuple[str, ...]:
    """Return the words of a list in `lists/words.txt`, separated by commas if it has any."""
    body = sections("words.txt")[name]
    parts = body.split(",") if "," in body else body.split()
    return tuple(" ".join(part.split()) for part in parts)


def phrases(name: str) -> tuple[str, ...]:
    """Return the phrases of a list in `lists/phrases.txt`, one a line."""
    return phrases_of("phrases.txt", name)


@cache
def phrases_of(file: str, name: str) -> tuple[str, ...]:
    """Return the phrases of a list in a file of `lists`, one a line."""
    lines = sections(file)[name].strip("\n").split("\n")
    return tuple(line.replace("\\n", "\n") for line in lines)


@cache
def forms(name: str) -> Any:
    """Return a list or a mapping of `lists/forms.json`: ways to phrase, to reword and to spell."""
    return json.loads((LISTS / "forms.json").read_text(encoding="utf-8"))[name]


@cache
def sections(file: str) -> dict[str, str]:
    """Return the lists of a file of `lists` as text, by their names."""
    parts = (LISTS / file).read_text(encoding="utf-8").split("== ")[1:]
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in parts}


def made_up(random: Random) -> str:
    """Make up a word that no list has, mostly pronounceable, in lower case."""
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
    """Join the beginning of one word of a list and the end of another."""
    left, right = random.choice(words), random.choice(words)
    return left[: random.randint(2, max(2, len(left) - 1))] + right[len(right) // 2 :].lower()


def accented(word: str, random: Random) -> str:
    """Return a word with one or two letters as in other languages than English."""
    letters = list(word)
    places = [i for i, letter in enumerate(letters) if letter.lower() in forms("accents")]
    for i in random.sample(places, min(len(places), random.choice([1, 1, 2]))):
        other = random.choice(forms("accents")[letters[i].lower()])
        letters[i] = other.upper() if letters[i].isupper() else other
    return "".join(letters)


def held_out_name(name: str) -> bool:
    """Whether the name of a part of a tool is left to exams: half of all are."""
    return zlib.crc32(name.encode()) % 2 == 0


def held_out_phrase(phrase: str) -> bool:
    """Whether a way of saying something is left to exams: a third of all are."""
    return zlib.crc32(phrase.encode()) % 3 == 0


Split = Literal["train", "heldout", "unseen"]  # "unseen": held-out patterns with held-out values

INVENT = (0.12, 0.35, 0.9)  # shares of made-up words: of most samples, of some, of a few
UNKNOWN = 0.05  # share of made-up words among those that everybody knows
ACCENTS = 0.04  # share of words that have some


class Draw:
    """A source of random values whose strings all belong to one half."""

    def __init__(self, random: Random, split: Split):
        self.random, self.heldout = random, split != "train"
        self._invent = random.choices(INVENT, [0.5, 0.35, 0.15])[0]

    def word(self, options: Sequence[str]) -> str:
        """Draw one of `options`, or a made-up word in their style, of this half."""
        return self.ours(lambda: self._word(options))

    def common(self, options: Sequence[str]) -> str:
        """Draw one of `options`, which are common words, or seldom a made-up one."""
        if self.chance(UNKNOWN):
            return self.ours(lambda: self._made_up(options))
        return self.random.choice(options)

    def ours(self, make: Callable[[], str]) -> str:
        while True:
            value = make()
            if self.owns(value):
                return value

    def owns(self, text: str) -> bool:
        return (zlib.crc32(text.encode()) % 10 == 0) == self.heldout

    def _word(self, options: Sequence[str]) -> str:
        word = self._plain_word(options)
        return accented(word, self.random) if self.chance(ACCENTS) else word

    def _plain_word(self, options: Sequence[str]) -> str:
        if self.random.random() >= self._invent:
            return self.random.choice(options)
        return self._made_up(options)

    def _made_up(self, options: Sequence[str]) -> str:
        made = made_up(self.random)
        if self.random.random() < 0.3:
            made = spliced(options, self.random)
        return made.capitalize() if options[0][0].isupper() else made

    def raw(self, options: Sequence[str]) -> str:
        """Draw a part of a longer value, of either half."""
        return self._word(options)

    def chance(self, share: float) -> bool:
        return self.random.random() < share
