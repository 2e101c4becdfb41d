"""Matches of patterns that no automaton expresses, by the `regex` library within limits of time."""

import re
from functools import lru_cache
from time import monotonic

import regex

_LONGEST = 10_000  # characters of a pattern
_ONE_MATCH = 0.25  # seconds
_ALL_MATCHES = 1.0  # seconds, in one check
_SPACES = r"\t\n\v\f\r \xA0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000\uFEFF"
_PIECE = re.compile(r"\\k<|\\z|\\.|\[\^?|\]|\$", re.DOTALL)


class TooLongError(Exception):
    """Matching a pattern took too long."""


class Backtracking:
    """Matcher of patterns for one check, with limits of time per match and in total."""

    def __init__(self):
        self._seconds_left = _ALL_MATCHES

    def fits(self, pattern: str, text: str) -> bool:
        """Whether the pattern matches a part of the text. Raises `TooLongError`."""
        compiled = _compiled(pattern)
        if compiled is None or self._seconds_left <= 0:
            raise TooLongError
        begin = monotonic()
        try:
            return compiled.search(text, timeout=min(_ONE_MATCH, self._seconds_left)) is not None
        except TimeoutError as error:
            raise TooLongError from error
        finally:
            self._seconds_left -= monotonic() - begin


def can_be_judged(pattern: str) -> bool:
    """Whether the `regex` library can compile `pattern`."""
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
    """Translate ECMAScript's `$`, `\\z`, `\\s` and named references to the library's syntax."""
    within = False

    def piece(match: re.Match[str]) -> str:
        nonlocal within
        text = match[0]
        if text == r"\s":
            return _SPACES if within else f"[{_SPACES}]"
        if text == r"\S" and not within:
            return f"[^{_SPACES}]"
        if text == "]" or text[0] == "[":
            within = text != "]" and (within or text[0] == "[")
        elif not within:
            return {"$": r"\Z", r"\z": r"\Z", r"\k<": r"\g<"}.get(text, text)
        return text

    return _PIECE.sub(piece, pattern)
