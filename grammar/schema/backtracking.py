"""Patterns that no automaton can read, judged on finished texts by the `regex` library.

It backtracks, so each look has a limit in seconds, and all looks of one check share another.
"""

import re
from functools import lru_cache
from time import monotonic

import regex

_LONGEST = 10_000  # characters of a pattern
_ONE = 0.25  # seconds of one look
_ALL = 1.0  # seconds of all looks at one value
_PIECE = re.compile(r"\\k<|\\z|\\.|\[\^?|\]|\$", re.DOTALL)


class TooLongError(Exception):
    """It took too long to say whether a pattern matches."""


class Backtracking:
    """Judges the patterns of one check."""

    def __init__(self):
        self._left = _ALL

    def fits(self, pattern: str, text: str) -> bool:
        """Whether the pattern matches a part of the text. Raises `TooLongError`."""
        compiled = _compiled(pattern)
        if compiled is None or self._left <= 0:
            raise TooLongError
        begin = monotonic()
        try:
            return compiled.search(text, timeout=min(_ONE, self._left)) is not None
        except TimeoutError as error:
            raise TooLongError from error
        finally:
            self._left -= monotonic() - begin


def can_be_judged(pattern: str) -> bool:
    """Whether the library can read a pattern."""
    return _compiled(pattern) is not None


def _compiled(pattern: str) -> regex.Pattern[str] | None:
    return _read(pattern) if len(pattern) <= _LONGEST else None


@lru_cache(maxsize=64)
def _read(pattern: str) -> regex.Pattern[str] | None:
    flags = regex.UNICODE if re.search(r"\\[pP]\{", pattern) else regex.ASCII
    try:
        return regex.compile(_as_ecmascript(pattern), flags)
    except (regex.error, RecursionError, OverflowError, ValueError):
        return None


def _as_ecmascript(pattern: str) -> str:
    """With `$` at the end of the text only, and references as the library writes them."""
    within = False

    def piece(found: re.Match[str]) -> str:
        nonlocal within
        text = found[0]
        if text == "]" or text[0] == "[":
            within = text != "]" and (within or text[0] == "[")
        elif not within:
            return {"$": r"\Z", r"\z": r"\Z", r"\k<": r"\g<"}.get(text, text)
        return text

    return _PIECE.sub(piece, pattern)
