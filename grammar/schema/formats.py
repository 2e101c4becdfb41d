"""The formats of JSON Schema that are enforced: of texts by an automaton, of integers by bounds.

Others assert nothing, as the specification has it by default.
"""

from functools import lru_cache

from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.pattern import automaton_of

_DAY = r"(?:0[1-9]|1\d|2[0-8])"
_LEAP = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEAR = r"(?:[1-9]\d\d\d|0[1-9]\d\d|00[1-9]\d|000[1-9])"  # most computers have no year 0
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[1-9]|1[0-2])-{_DAY}|(?:0[13-9]|1[0-2])-(?:29|30)"
    rf"|(?:0[13578]|1[02])-31)|{_LEAP}-02-29)"
)
_HOUR = r"(?:[01]\d|2[0-3])"
_FRACTION = r"(?:\.\d+)?"


def _leap_second(half: int) -> str:
    """The last second of a UTC day, in the half hour of a local day; offsets are whole ones too."""
    ahead, behind = (f"{n % 48 // 2:02}:{n % 2 * 30:02}" for n in (half + 1, 47 - half))
    utc = "[Zz]|" if half == 47 else ""
    local = f"{half // 2:02}:{half % 2 * 30 + 29}"
    return rf"{local}:60{_FRACTION}(?:{utc}\+{ahead}|-{behind})"


_LEAP_SECONDS = "|".join(map(_leap_second, range(48)))
_TIME = rf"(?:{_HOUR}:[0-5]\d:[0-5]\d{_FRACTION}(?:[Zz]|[+\-]{_HOUR}:[0-5]\d)|{_LEAP_SECONDS})"
_CLOCK = r"T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_DAYS = r"(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)"  # RFC 3339, appendix A

_HEX = r"[0-9A-Fa-f]"
_BYTE = r"(?:\d|[1-9]\d|1\d\d|2[0-4]\d|25[0-5])"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_PAIR = rf"(?:{_HEX}{{1,4}}:)"
_LAST = rf"(?:{_PAIR}{_HEX}{{1,4}}|{_IPV4})"
_IPV6 = "|".join(  # RFC 3986
    [
        rf"{_PAIR}{{6}}{_LAST}",
        rf"::{_PAIR}{{5}}{_LAST}",
        *(rf"(?:{_PAIR}{{0,{n}}}{_HEX}{{1,4}})?::{_PAIR}{{{4 - n}}}{_LAST}" for n in range(5)),
        rf"(?:{_PAIR}{{0,5}}{_HEX}{{1,4}})?::{_HEX}{{1,4}}",
        rf"(?:{_PAIR}{{0,6}}{_HEX}{{1,4}})?::",
    ]
)

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9\-]{0,61}[A-Za-z0-9])?"
_PLAIN_LABEL = rf"(?!..--){_LABEL}"  # those with `--` there are IDNA's: only a table knows which
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\-]+"
_WIDE_ATOM = _ATOM.replace("[", "[\\u0080-\\u{10FFFF}")
_WIDE = r"\p{L}\p{N}"
_WIDE_LABEL = rf"[{_WIDE}](?:[{_WIDE}\p{{M}}\-]*[{_WIDE}\p{{M}}])?"


def _email(atom: str, quoted: str, label: str) -> str:
    """RFC 5321 without comments, and RFC 6531."""
    local = rf'(?:{atom}(?:\.{atom})*|"(?:{quoted}|\\[ -~])*")'
    return rf"{local}@(?:{label}(?:\.{label})*|\[(?:{_IPV4}|IPv6:(?:{_IPV6}))\])"


_ESCAPE = rf"%{_HEX}{{2}}"
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
    future = rf"[vV]{_HEX}+\.[A-Za-z0-9\-._~{_MARKS}:]+"
    host = rf"(?:\[(?:{_IPV6}|{future})\]|{run('')}*)"
    authority = rf"//(?:{run(':')}*@)?{host}(?::\d*)?(?:/{segment}*)*"
    rooted = rf"/(?:{segment}+(?:/{segment}*)*)?"
    behind = rf"(?:\?{run(':@/?' + private)}*)?(?:#{run(':@/?')}*)?"
    full = rf"[A-Za-z][A-Za-z0-9+.\-]*:(?:{authority}|{rooted}|{segment}+(?:/{segment}*)*)?{behind}"
    if not relative:
        return full
    return rf"{full}|(?:{authority}|{rooted}|{run('@')}+(?:/{segment}*)*)?{behind}"


_VARIABLE = rf"(?:\w|{_ESCAPE})(?:\.?(?:\w|{_ESCAPE}))*(?:\*|:[1-9]\d{{0,3}})?"
_POINTER = "(?:/(?:[^~/]|~[01])*)*"

_PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}[Tt]{_TIME}",
    "duration": rf"P(?:\d+W|{_DAYS}(?:{_CLOCK})?|{_CLOCK})",
    "email": _email(_ATOM, r"[ !#-\[\]-~]", _LABEL),
    "idn-email": _email(_WIDE_ATOM, r"[ !#-\[\]-~\u0080-\u{10FFFF}]", _WIDE_LABEL),
    "hostname": rf"{_PLAIN_LABEL}(?:\.{_PLAIN_LABEL})*",
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _uri(),
    "uri-reference": _uri(relative=True),
    "iri": _uri(_FOREIGN, _PRIVATE),
    "iri-reference": _uri(_FOREIGN, _PRIVATE, relative=True),
    "uri-template": (  # RFC 6570
        rf"(?:[!#$&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~{_FOREIGN}{_PRIVATE}]|{_ESCAPE}"
        rf"|\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"
    ),
    "uuid": rf"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9]\d*)(?:#|{_POINTER})",
}
_LENGTHS = {"hostname": 253}


@lru_cache(maxsize=len(_PATTERNS))
def format_automaton(name: str) -> Automaton | None:
    """None for a format that is not enforced. Its texts may be longer than `format_length` says."""
    return automaton_of(_PATTERNS[name], whole=True) if name in _PATTERNS else None


def format_length(name: str) -> int | None:
    """The most characters of a format, where its automaton does not count them."""
    return _LENGTHS.get(name)
