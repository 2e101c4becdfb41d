"""Keywords with patterns, for checks by `jsonschema`: judged by automata where there are some.

The library finds out with `re`, which backtracks without end.
"""

import logging
from collections.abc import Callable
from typing import Any

from jsonschema import exceptions

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import TooLargeError
from dlm.grammar.regex.pattern import bounded
from dlm.grammar.schema.backtracking import Backtracking, TooLongError
from dlm.grammar.schema.older import Errors, Keyword

Fits = Callable[[str, str], bool]  # a pattern, a text

_LOG = logging.getLogger(__name__)


class Patterns:
    """Judges the patterns of one check."""

    def __init__(self):
        self._backtracking = Backtracking()

    def fits(self, pattern: str, text: str) -> bool:
        """Whether the pattern occurs in the text. Raises `TooLongError` where that takes too long
        to say."""
        try:
            automaton, low, high = bounded(pattern, False)
        except (InvalidGrammarError, TooLargeError):
            return self._backtracking.fits(pattern, text)
        most = len(text) if high is None else high
        return low <= len(text) <= most and automaton.accepts(text)


def pattern_keywords(fits: Fits) -> dict[str, Keyword]:
    """Return the keywords with patterns, judged by `fits`.

    A `pattern` that takes too long to judge is not enforced, and logged.
    """

    def pattern(validator: Any, wanted: str, instance: Any, schema: Any) -> Errors:
        if not isinstance(instance, str):
            return
        try:
            if not fits(wanted, instance):
                yield exceptions.ValidationError(f"{instance!r:.80} does not match {wanted!r:.80}")
        except TooLongError:
            text = f"{instance!r:.80}"
            _LOG.warning("not enforced: whether %s matches %.80r takes too long", text, wanted)

    def pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Errors:
        if isinstance(instance, dict):
            for key, part in patterns.items():
                for name, value in instance.items():
                    if fits(key, name):
                        yield from validator.descend(value, part, path=name, schema_path=key)

    def additional_properties(validator: Any, rest: Any, instance: Any, schema: Any) -> Errors:
        if isinstance(instance, dict):
            patterns = schema.get("patternProperties", {})
            for name, value in instance.items():
                if name not in schema.get("properties", {}) and not any(
                    fits(pattern, name) for pattern in patterns
                ):
                    yield from validator.descend(value, rest, path=name)

    return {
        "pattern": pattern,
        "patternProperties": pattern_properties,
        "additionalProperties": additional_properties,
    }
