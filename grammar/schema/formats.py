"""The formats that are enforced, those of JSON Schema and of pydantic, each by an automaton.

Others assert nothing, as the specification has it by default. Dates and times are kept to what
common readers read: capital letters, and digits that do not go on without end.
"""

from functools import lru_cache
from typing import Any

from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.pattern import automaton_of
from dlm.grammar.schema import notations
from dlm.grammar.schema.networks import (
    HEX,
    IPV4,
    IPV4_INTERFACE,
    IPV4_NETWORK,
    IPV6,
    IPV6_INTERFACE,
    IPV6_NETWORK,
)

_DAY = r"(?:0[1-9]|1\d|2[0-8])"
_LEAP = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEAR = r"(?:[1-9]\d\d\d|0[1-9]\d\d|00[1-9]\d|000[1-9])"  # most computers have no year 0
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[1-9]|1[0-2])-{_DAY}|(?:0[13-9]|1[0-2])-(?:29|30)"
    rf"|(?:0[13578]|1[02])-31)|{_LEAP}-02-29)"
)
_HOUR = r"(?:[01]\d|2[0-3])"
_FRACTION = r"(?:\.\d{1,9})?"  # nanoseconds


def _leap_second(half: int) -> str:
    """The last second of a UTC day, in the half hour of a local day; offsets are whole ones too."""
    ahead, behind = (f"{n % 48 // 2:02}:{n % 2 * 30:02}" for n in (half + 1, 47 - half))
    utc = "Z|" if half == 47 else ""
    local = f"{half // 2:02}:{half % 2 * 30 + 29}"
    return rf"{local}:60{_FRACTION}(?:{utc}\+{ahead}|-{behind})"


_LEAP_SECONDS = "|".join(map(_leap_second, range(48)))
_TIME = rf"(?:{_HOUR}:[0-5]\d:[0-5]\d{_FRACTION}(?:Z|[+\-]{_HOUR}:[0-5]\d)|{_LEAP_SECONDS})"
_COUNT = r"\d{1,9}"
_SECONDS = rf"(?:{_COUNT}S)?"
_CLOCK = rf"T(?:{_COUNT}H(?:{_COUNT}M{_SECONDS})?|{_COUNT}M{_SECONDS}|{_COUNT}S)"
_MONTHS = rf"{_COUNT}M(?:{_COUNT}D)?"
_DAYS = rf"(?:{_COUNT}Y(?:{_MONTHS})?|{_MONTHS}|{_COUNT}D)"  # RFC 3339, appendix A

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9\-]{0,61}[A-Za-z0-9])?"
_PLAIN_LABEL = rf"(?!..--){_LABEL}"  # those with `--` there are IDNA's: only a table knows which
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\-]+"
_QUOTED = r"[ !#-\[\]-~]"
_WIDE_ATOM = _ATOM.replace("[", "[\\u0080-\\u{10FFFF}")
_WIDE = r"\p{L}\p{N}"
_WIDE_LABEL = rf"[{_WIDE}](?:[{_WIDE}\p{{M}}\-]*[{_WIDE}\p{{M}}])?"


def _email(atom: str, quoted: str, label: str) -> str:
    """RFC 5321 without comments, and RFC 6531."""
    local = rf'(?:{atom}(?:\.{atom})*|"(?:{quoted}|\\[ -~])*")'
    return rf"{local}@(?:{label}(?:\.{label})*|\[(?:{IPV4}|IPv6:(?:{IPV6}))\])"


_ESCAPE = rf"%{HEX}{{2}}"
_MARKS = "!$&'()*+,;="
_FOREIGN = (  # RFC 3987
    r"\u00A0-\uD7FF\uF900-\uFDCF\uFDF0-\uFFEF"
    + "".join(rf"\u{{{plane:X}0000}}-\u{{{plane:X}FFFD}}" for plane in range(1, 14))
    + r"\u{E1000}-\u{EFFFD}"
)
_PRIVATE = r"\uE000-\uF8FF\u{F0000}-\u{FFFFD}\u{100000}-\u{10FFFD}"


def _uri(more: str = "", private: str = "", relative: bool = False) -> str:
    """RFC 3986; with `more` characters, RFC 3987."""
    free = rf"A-Za-z0-9\-._~{more}"

    def run(others: str) -> str:
        return rf"(?:[{free}{_MARKS}{others}]|{_ESCAPE})"

    segment = run(":@")
    future = rf"[vV]{HEX}+\.[A-Za-z0-9\-._~{_MARKS}:]+"
    host = rf"(?:\[(?:{IPV6}|{future})\]|{run('')}*)"
    authority = rf"//(?:{run(':')}*@)?{host}(?::\d*)?(?:/{segment}*)*"
    rooted = rf"/(?:{segment}+(?:/{segment}*)*)?"
    behind = rf"(?:\?{run(':@/?' + private)}*)?(?:#{run(':@/?')}*)?"
    full = rf"[A-Za-z][A-Za-z0-9+.\-]*:(?:{authority}|{rooted}|{segment}+(?:/{segment}*)*)?{behind}"
    if not relative:
        return full
    return rf"{full}|(?:{authority}|{rooted}|{run('@')}+(?:/{segment}*)*)?{behind}"


def _multi_host_uri() -> str:
    """As pydantic's `MultiHostUrl`: `postgresql://user@a:1,b:2/c`."""
    free = rf"[A-Za-z0-9\-._~!$&'()*+;=]|{_ESCAPE}"
    host = rf"(?:(?:{free})+|\[(?:{IPV6})\])(?::\d{{1,4}})?"
    rest = rf"(?:/(?:[:@,]|{free})*)*(?:\?(?:[:@/?,]|{free})*)?(?:#(?:[:@/?,]|{free})*)?"
    return rf"[A-Za-z][A-Za-z0-9+.\-]*://(?:(?:[:,]|{free})*@)?{host}(?:,{host})*{rest}"


def _uuid(version: str = "") -> str:
    """Of any version, or RFC 9562's of one."""
    if not version:
        return rf"{HEX}{{8}}(?:-{HEX}{{4}}){{3}}-{HEX}{{12}}"
    return rf"{HEX}{{8}}-{HEX}{{4}}-{version}{HEX}{{3}}-[89ABab]{HEX}{{3}}-{HEX}{{12}}"


def _base64(others: str) -> str:
    """RFC 4648, with its padding; `others` are the last two of the 64 characters."""
    any_ = rf"[A-Za-z0-9{others}]"
    return rf"(?:{any_}{{4}})*(?:{any_}[AQgw]==|{any_}{{2}}[AEIMQUYcgkosw048]=)?"


_VARIABLE = rf"(?:\w|{_ESCAPE})(?:\.?(?:\w|{_ESCAPE}))*(?:\*|:[1-9]\d{{0,3}})?"
_POINTER = "(?:/(?:[^~/]|~[01])*)*"

_PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}T{_TIME}",
    "duration": rf"P(?:{_COUNT}W|{_DAYS}(?:{_CLOCK})?|{_CLOCK})",
    "email": _email(_ATOM, _QUOTED, _LABEL),
    "idn-email": _email(_WIDE_ATOM, r"[ !#-\[\]-~\u0080-\u{10FFFF}]", _WIDE_LABEL),
    "hostname": rf"{_PLAIN_LABEL}(?:\.{_PLAIN_LABEL})*",
    "ipv4": IPV4,
    "ipv6": IPV6,
    "uri": _uri(),
    "uri-reference": _uri(relative=True),
    "iri": _uri(_FOREIGN, _PRIVATE),
    "iri-reference": _uri(_FOREIGN, _PRIVATE, relative=True),
    "uri-template": (  # RFC 6570
        rf"(?:[!#$&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~{_FOREIGN}{_PRIVATE}]|{_ESCAPE}"
        rf"|\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"
    ),
    "uuid": _uuid(),
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9]\d*)(?:#|{_POINTER})",
    "regex": notations.regex(),
    # What pydantic writes beyond these:
    **{f"uuid{version}": _uuid(version) for version in "12345678"},
    "ipvanyaddress": rf"{IPV4}|{IPV6}",
    "ipv4network": IPV4_NETWORK,
    "ipv6network": IPV6_NETWORK,
    "ipvanynetwork": rf"{IPV4_NETWORK}|{IPV6_NETWORK}",
    "ipv4interface": IPV4_INTERFACE,
    "ipv6interface": IPV6_INTERFACE,
    "ipvanyinterface": rf"{IPV4_INTERFACE}|{IPV6_INTERFACE}",
    "base64": _base64("+/"),
    "base64url": _base64(r"\-_"),
    "json-string": notations.json_text(),
    "name-email": rf'[^<>@,;:"\\()\[\]\u0000-\u0020]+(?: [^<>@,;:"\\()\[\]\u0000-\u0020]+)*'
    rf" <{_email(_ATOM, _QUOTED, _LABEL)}>",
    "multi-host-uri": _multi_host_uri(),
    "fraction": r"-?(?:0|[1-9]\d{0,17})(?:/[1-9]\d{0,17})?",
    "zoneinfo": r"UTC|[A-Z][A-Za-z_]+(?:/[A-Z][A-Za-z_+\-0-9]*){1,2}",
}
_LENGTHS = {"hostname": 253}
_ANY_TEXT = frozenset(  # formats of texts that are not enforced
    "idn-hostname password binary path file-path directory-path color".split()
)


def format_automaton(name: str) -> Automaton | None:
    """None for a format that is not enforced. Its texts may be longer than `format_length` says."""
    return _enforced(name) if name in _PATTERNS else None


@lru_cache(maxsize=len(_PATTERNS))
def _enforced(name: str) -> Automaton:
    return automaton_of(_PATTERNS[name], whole=True)


def format_length(name: str) -> int | None:
    """The most characters of a format, where its automaton does not count them."""
    return _LENGTHS.get(name)


def is_textual(name: Any) -> bool:
    """Whether a format is known to be one of strings, so that it implies their type."""
    return isinstance(name, str) and (name in _PATTERNS or name in _ANY_TEXT)
