"""Strings and numbers of a JSON schema as xgrammar 0.2.8 takes them to the letter.

It matches a pattern against the whole string, without escapes in the JSON, and drops its anchors.
A pattern or a format that it knows makes it forget the length. It writes numbers that have bounds
with six digits behind the point, and forgets `multipleOf` unless it can count.
"""

import math
import re
from typing import Any

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
_CLASS = r"\[\^?(?:[^\[\]\\]|\\.)+\]"
_QUANTIFIER = r"([*+?]|\{(\d+)(,(\d*))?\})\??"
_TOKEN = rf"\\x..|\\u....|\\.|{_CLASS}|\((?:\?:|\?P<\w+>)?|[*+?]\??|\{{\d+(?:,\d*)?\}}\??|."
_REPEATED = re.compile(rf"\^({_CLASS}|\\[dw]){_QUANTIFIER}\$")
_LONGEST = 10_000  # characters of a pattern
_UNSURE = (
    (r"\(\?[^:P]|\(\?P[^<]|\\[1-9]", "it looks around or back, or sets a flag"),
    (r"\\[DWS]", "it has a class of other characters than in xgrammar"),
    (r"\\[^\W_dwsnrtfvxu]", "it has an escape that xgrammar reads as a letter"),
    (r"[*+?}]\+", "it has a possessive quantifier"),
    (r"(?<!^)\^|\$(?!$)", "it has an anchor in its middle"),
    (r'"|\\\\|\\[nrtfvxu]|[\x00-\x1f]', "it spells what JSON strings escape"),
)


def pattern_problem(pattern: str) -> str | None:
    """Why xgrammar might accept more than `pattern` does; None if it does not."""
    for branch in _branches(pattern):
        bare = re.sub(_CLASS, _suspect, branch)
        for unsure, reason in _UNSURE:
            if re.search(unsure, bare):
                return reason
    return None if len(whole(pattern)) <= _LONGEST else "it is too long"


def whole(pattern: str) -> str:
    """`pattern` for xgrammar: an anchor at one end only leaves the other end open."""
    branches = []
    for branch in _branches(pattern):
        starts, ends = branch.startswith("^"), re.search(r"(?<!\\)(\\\\)*\$$", branch) is not None
        body = branch[starts : len(branch) - ends]
        branches.append(".*" * (ends and not starts) + body + ".*" * (starts and not ends))
    body = f"({'|'.join(branches)})" if len(branches) > 1 else branches[0]
    return f"^{_respelled(body)}$"


def _respelled(pattern: str) -> str:
    """`pattern` without what xgrammar's automata get wrong: an optional group, a group repeated
    at least twice, a range of repetitions beside alternatives."""
    if re.search(r"\(\?[^:P]|\(\?P[^<]", pattern):  # a problem: as it is
        return pattern
    branching = re.search(r"\||\)(\?|\{0)", re.sub(rf"\\.|{_CLASS}", "_", pattern)) is not None
    groups: list[list[str]] = [[]]
    for token in re.findall(_TOKEN, pattern, re.DOTALL):
        if token.startswith("("):
            groups.append([token])
        elif token == ")" and len(groups) > 1:
            group = groups.pop()
            groups[-1].append("".join(group) + ")")
        elif groups[-1] and (repeated := re.fullmatch(_QUANTIFIER, token)):
            groups[-1].append(_repeat(groups[-1].pop(), *_range(repeated), branching))
        else:
            groups[-1].append("".join(c if c.isascii() else f"\\u{{{ord(c):x}}}" for c in token))
    return "".join(map("".join, groups))


def _repeat(atom: str, low: int, high: int | float, branching: bool) -> str:
    group = atom.startswith("(")
    if (low, high) == (0, math.inf):
        return f"{atom}*"
    if high == math.inf:
        return f"{atom}+" if low == 1 else f"{atom}{{{low}}}{atom}*"
    if low == high or not branching:
        return f"{atom}{{{low},{int(high)}}}"
    least = atom if low == 1 else f"{atom}{{{low}}}" if low else ""
    return least + (f"(|{atom})" if group else f"{atom}?") * int(high - low)


def string_schema(plain: dict[str, Any]) -> Written:
    low, high = int(plain.get("minLength", 0)), plain.get("maxLength", math.inf)
    lengths = {key: int(plain[key]) for key in ("minLength", "maxLength") if key in plain}
    schema: dict[str, Any] = {"type": "string"}
    if low > high:
        return None, {}
    if "pattern" not in plain:
        if lengths:
            return schema | lengths, {}
        if plain.get("format") in _FORMATS:
            return schema | {"pattern": _FORMATS[plain["format"]]}, {}
        return schema | ({"format": plain["format"]} if "format" in plain else {}), {}
    reason = pattern_problem(plain["pattern"])
    problems = {"pattern": reason} if reason else {}
    pattern = whole(plain["pattern"])
    repeated = _REPEATED.fullmatch(plain["pattern"])
    if lengths and repeated:
        least, most = _range(repeated)
        least, most = max(low, least), min(high, most)
        if least > most:
            return None, {}
        pattern = f"^{_repeat(repeated[1], least, most, False)}$"
    elif lengths:
        problems |= dict.fromkeys(lengths, "it is beside a pattern")
    return schema | {"pattern": pattern}, problems


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


def _branches(pattern: str) -> list[str]:
    """The alternatives at the top of `pattern`."""
    depth, start, found = 0, 0, []
    for match in re.finditer(rf"\\.|{_CLASS}|[()|]", pattern, re.DOTALL):
        depth += (match[0] == "(") - (match[0] == ")")
        if match[0] == "|" and not depth:
            found.append(pattern[start : match.start()])
            start = match.end()
    return [*found, pattern[start:]]


def _suspect(group: re.Match[str]) -> str:
    """What of a character class may mean more to xgrammar, as a pattern."""
    inner = group[0][1:-1]
    escapes = "".join(re.findall(r"\\[^\W_dwsnrtfvxu]|\\[DWS]", inner))
    if inner.startswith("^"):
        return escapes + r"\D" * bool(re.search(r"\\[dws]", inner))
    plain = re.sub(r'\\[\\nrtfvxu"]|["\x00-\x1f]', "", inner)
    return escapes + '"' * (not plain)


def _range(repeated: re.Match[str]) -> tuple[int, int | float]:
    """Least and most, of a match that ends with the groups of a quantifier."""
    sign, low, more, high = repeated.groups()[-4:]
    if low is None:
        return int(sign == "+"), 1 if sign == "?" else math.inf
    return int(low), int(low) if more is None else int(high) if high else math.inf
