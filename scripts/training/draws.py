"""Random words and texts, each of one of two halves: what training may see, and what is held out.

A checksum of a text says which half it belongs to, so that a held-out value is in no training
sample. Words that everybody knows, like those for colours, have no halves.
"""

import zlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Literal

from training.words import accented, made_up, spliced

Split = Literal["train", "heldout", "unseen"]  # "unseen": held-out patterns with held-out values

INVENT = (0.12, 0.35, 0.9)  # shares of made-up words: of most samples, of some, of a few
UNKNOWN = 0.05  # share of made-up words among those that everybody knows
ACCENTS = 0.04  # share of words that have some


class Draw:
    """Random values whose strings all belong to one half."""

    def __init__(self, random: Random, split: Split):
        self.random, self.heldout = random, split != "train"
        self._invent = random.choices(INVENT, [0.5, 0.35, 0.15])[0]

    def word(self, options: Sequence[str]) -> str:
        """One of `options`, or a made-up one in their style; of this half."""
        return self.ours(lambda: self._word(options))

    def common(self, options: Sequence[str]) -> str:
        """One of `options`, which are words that everybody knows; now and then a made-up one."""
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
        """A part of a longer value, of either half."""
        return self._word(options)

    def chance(self, share: float) -> bool:
        return self.random.random() < share
