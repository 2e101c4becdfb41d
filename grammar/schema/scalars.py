"""Strings and numbers of a JSON schema as xgrammar 0.2.8 takes them to the letter.

A format that it knows makes it forget the length. It writes numbers that have bounds with six
digits behind the point, and forgets `multipleOf` unless it can count.
"""

import math
from typing import Any

from dlm.grammar.schema.strings import Strings

# What is written, if anything fits, and which keywords it does not enforce, with the reasons.
Written = tuple[dict[str, Any] | None, dict[str, str]]

_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_FINE = 2**32  # below, six digits behind the point are fewer than a double has
_MOST_STATES = 1024  # of the automaton for `multipleOf`: xgrammar's own limit
_MOST_MULTIPLES = 10_000
_ATOM = r"[\w!#$%&'*+/=?^`{|}~-]+"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
_POINTER = r"(/([^/~]|~[01])*)*"
_FORMATS = {  # what xgrammar has for these lets quotes and backslashes through
    "email": rf"^{_ATOM}(\.{_ATOM})*@{_LABEL}(\.{_LABEL})*$",
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": f"^(0|[1-9][0-9]*)(#|{_POINTER})$",
}


def string_schema(plain: dict[str, Any]) -> Written:
    low, high = int(plain.get("minLength", 0)), plain.get("maxLength")
    lengths = {key: int(plain[key]) for key in ("minLength", "maxLength") if key in plain}
    schema: dict[str, Any] = {"type": "string"}
    if high is not None and low > high:
        return None, {}
    if "pattern" in plain:
        strings = Strings(tuple(plain["pattern"]), low, lengths.get("maxLength"))
        if strings.problem:
            return schema | lengths, {"pattern": strings.problem}
        return schema | {"pattern": strings.word}, {}
    if lengths:
        return schema | lengths, {}
    if plain.get("format") in _FORMATS:
        return schema | {"pattern": Strings((_FORMATS[plain["format"]],)).word}, {}
    return schema | ({"format": plain["format"]} if "format" in plain else {}), {}


def number_schema(plain: dict[str, Any], kind: str) -> Written:
    """`kind` is "number" or "integer"."""
    step = plain.get("multipleOf")
    if step is not None and step == int(step):
        kind = "integer"  # 12.0 may be written as 12
    bounds = _integer_bounds(plain) if kind == "integer" else _bounds(plain)
    problems = {}
    if kind == "number":
        for key, bound in bounds.items():
            if bound != float(bound) or (key.startswith("e") and abs(bound) >= _FINE):
                problems[key] = "it is too large to be exact"
    low, high = bounds.get("minimum", -math.inf), bounds.get("maximum", math.inf)
    if low > high:
        return None, {}
    schema = {"type": kind} | bounds
    if step is None or step == 1:
        return schema, problems
    if kind == "number" or step != int(step):
        return schema, problems | {"multipleOf": "it is no integer"}
    if not bounds and step <= _MOST_STATES:
        return schema | {"multipleOf": int(step)}, problems
    if high - low < _MOST_MULTIPLES:
        multiples = [n for n in range(int(low), int(high) + 1) if n % step == 0]
        return ({"enum": multiples} if multiples else None), problems
    return schema, problems | {"multipleOf": "its range is open or large"}


def _bounds(plain: dict[str, Any]) -> dict[str, Any]:
    return {key: plain[key] for key in _BOUNDS if key in plain}


def _integer_bounds(plain: dict[str, Any]) -> dict[str, Any]:
    lows = [math.ceil(plain[key]) for key in ("minimum",) if key in plain]
    lows += [math.floor(plain[key]) + 1 for key in ("exclusiveMinimum",) if key in plain]
    highs = [math.floor(plain[key]) for key in ("maximum",) if key in plain]
    highs += [math.ceil(plain[key]) - 1 for key in ("exclusiveMaximum",) if key in plain]
    low = {"minimum": max(lows)} if lows else {}
    return low | ({"maximum": min(highs)} if highs else {})
