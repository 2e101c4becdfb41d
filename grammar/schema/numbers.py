"""Numbers between bounds, as rules of xgrammar's EBNF. Knows nothing of schemas."""

import json
import math
import re
from fractions import Fraction

import xgrammar as xgr

from dlm.grammar.errors import InvalidGrammarError

INTEGER = '("0" | "-"? [1-9] [0-9]{0,99})'
NUMBER = '("-"? ("0" | [1-9] [0-9]{0,99}) ("." [0-9]{1,99})? ([eE] [+\\-]? [0-9]{1,2})?)'

_PLACES = 6  # decimals that xgrammar writes between bounds
_LARGEST = 10**15  # a double's exact decimals: 15 digits
_LARGEST_OPEN = 10 ** (15 - _PLACES)  # so that behind an open bound no number rounds onto it
_DIGITS = 99  # of a number without an upper bound; a double holds over 300
_LOW, _HIGH = ("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")
_RULE = re.compile(r"\broot((?:_\d+)*)\b")

Bound = tuple[int | float, bool]  # and whether it is allowed itself


def integers(low: Bound | None, high: Bound | None, name: str) -> str:
    """Rules, the first of which is `name`. Raises `InvalidGrammarError`."""
    least, most = _steps(low, high, 0)
    if any(bound is not None and abs(bound) >= 2**63 for bound in (least, most)):
        raise InvalidGrammarError("number", "a bound has over 64 bits")
    if least is not None and most is not None and least > most:
        raise InvalidGrammarError("number", "no integer is between the bounds")
    return _rules({"type": "integer", "minimum": least, "maximum": most}, name)


def numbers(low: Bound | None, high: Bound | None, name: str) -> str:
    """Rules, the first of which is `name`. Raises `InvalidGrammarError`."""
    bounds = {}
    for bound, words in ((low, _LOW), (high, _HIGH)):
        if bound is not None:
            value, closed = bound
            if (Fraction(repr(value)) * 10**_PLACES).denominator != 1:
                raise InvalidGrammarError("number", f"a bound has over {_PLACES} decimals")
            largest = _LARGEST if closed else _LARGEST_OPEN
            if abs(value) > largest:
                raise InvalidGrammarError("number", f"a bound is beyond {largest}")
            bounds[words[closed]] = value
    least, most = _steps(low, high, _PLACES)
    if least is not None and most is not None and least > most:
        raise InvalidGrammarError("number", "no number is between the bounds")
    return _rules({"type": "number", **bounds}, name)


def _steps(low: Bound | None, high: Bound | None, places: int) -> tuple[int | None, int | None]:
    """The least and the greatest number with that many decimals, times ten to their power."""
    least = most = None
    if low is not None:
        value = Fraction(repr(low[0])) * 10**places
        least = math.ceil(value) + (value.denominator == 1 and not low[1])
    if high is not None:
        value = Fraction(repr(high[0])) * 10**places
        most = math.floor(value) - (value.denominator == 1 and not high[1])
    return least, most


def _rules(schema: dict[str, int | float | str | None], name: str) -> str:
    schema = {word: value for word, value in schema.items() if value is not None}
    grammar = str(xgr.Grammar.from_json_schema(json.dumps(schema), any_whitespace=False))
    rules = [line for line in grammar.splitlines() if _RULE.match(line)]
    return _RULE.sub(rf"{name}\1", "\n".join(rules)).replace(", -1}", f", {_DIGITS}}}")
