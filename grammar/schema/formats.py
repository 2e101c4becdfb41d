"""The formats of JSON Schema that are enforced: for texts by a regex, for integers by bounds.

Unlike most regexes of this kind, those of dates know how long a month is.
"""

import re

_DAY = r"(?:0[1-9]|1\d|2[0-8])"
_LEAP = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEAR = r"(?:[1-9]\d\d\d|0[1-9]\d\d|00[1-9]\d|000[1-9])"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[1-9]|1[0-2])-{_DAY}|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    rf"|{_LEAP}-02-29)"
)
_HOUR = r"(?:[01]\d|2[0-3])"
_TIME = rf"{_HOUR}:[0-5]\d:[0-5]\d(?:\.\d{{1,9}})?(?:Z|[+\-]{_HOUR}:[0-5]\d)"
_CLOCK = r"(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9\-]{0,61}[A-Za-z0-9])?"
_ATOM = r"[\w!#$%&'*+/=?^`{|}~\-]+"
_BYTE = r"(?:\d|[1-9]\d|1\d\d|2[0-4]\d|25[0-5])"
_HEX = r"[0-9A-Fa-f]"
_GROUP = rf"{_HEX}{{1,4}}"
_IPV6 = "|".join(
    [
        rf"(?:{_GROUP}:){{7}}{_GROUP}",
        *(rf"(?:{_GROUP}:){{1,{7 - n}}}(?::{_GROUP}){{1,{n}}}" for n in range(1, 7)),
        rf"(?:{_GROUP}:){{1,7}}:",
        rf":(?::{_GROUP}){{1,7}}",
        "::",
    ]
)

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}T{_TIME}",
    "duration": (
        rf"P(?:\d+W|\d+Y(?:\d+M(?:\d+D)?)?(?:T{_CLOCK})?|\d+M(?:\d+D)?(?:T{_CLOCK})?"
        rf"|\d+D(?:T{_CLOCK})?|T{_CLOCK})"
    ),
    "email": rf"{_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})*",
    "hostname": rf"{_LABEL}(?:\.{_LABEL})*",
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "ipv6": _IPV6,
    "uri": r"[A-Za-z][A-Za-z0-9+.\-]*:(?:[A-Za-z0-9\-._~:/?#@!$&'()*+,;=]|%[0-9A-Fa-f]{2})+",
    "uuid": rf"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
}

_INTEGER = re.compile(r"(u?)int(8|16|32|64)?")


def integer_bounds(name: str) -> tuple[int, int] | None:
    """Of OpenAPI's `int32` and its like; None for a format that bounds nothing.

    Those of `uint64` are `int64`'s: larger integers cannot be bounded.
    """
    if not (found := _INTEGER.fullmatch(name)):
        return None
    width = int(found[2] or 64)
    if found[1]:
        return 0, min(2**width, 2**63) - 1
    return -(2 ** (width - 1)) + (width == 64), 2 ** (width - 1) - 1
