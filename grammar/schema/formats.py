"""Formats of strings, as patterns.

The enforced formats are those of JSON Schema and of pydantic; other formats assert nothing, which
is the specification's default. An enforced format never allows more than its standard, but may
allow less: dates and times are limited to what common parsers accept (capital letters, up to nine
digits of a second), JSON text and regexes to a few levels of nesting. IP addresses, networks and
interfaces are those of the standard library's `ipaddress`; a network has no bit set after its
prefix.
"""

from functools import lru_cache
from typing import Any

from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.patterns import BoundedTexts, automaton_of
from dlm.grammar.schema.stored_automata import file_of, stored_automaton

HEX = r"[0-9A-Fa-f]"
_BYTE = r"(?:\d|[1-9]\d|1\d\d|2[0-4]\d|25[0-5])"
IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_GROUP = rf"{HEX}{{1,4}}"
_PAIR = rf"(?:{_GROUP}:)"
_LAST = rf"(?:{_PAIR}{_GROUP}|{IPV4})"
IPV6 = "|".join(  # RFC 3986
    [
        rf"{_PAIR}{{6}}{_LAST}",
        rf"::{_PAIR}{{5}}{_LAST}",
        *(rf"(?:{_PAIR}{{0,{n}}}{_GROUP})?::{_PAIR}{{{4 - n}}}{_LAST}" for n in range(5)),
        rf"(?:{_PAIR}{{0,5}}{_GROUP})?::{_GROUP}",
        rf"(?:{_PAIR}{{0,6}}{_GROUP})?::",
    ]
)
IPV4_INTERFACE = rf"{IPV4}(?:/(?:[12]?\d|3[0-2]))?"
IPV6_INTERFACE = rf"(?:{IPV6})(?:/(?:[1-9]?\d|1[01]\d|12[0-8]))?"


def _alternation(options: list[str]) -> str:
    return f"(?:{'|'.join(options)})"


def _ipv4_network(prefix: int) -> str:
    full, bits = divmod(prefix, 8)
    parts = [_BYTE] * full
    if full < 4:
        parts.append(_alternation([str(byte) for byte in range(0, 256, 1 << 8 - bits)]))
    parts += ["0"] * (4 - len(parts))
    return r"\.".join(parts) + f"/{prefix}"


def _group_of(bits: int) -> str:
    """Return a pattern of groups in which only the first `bits` of 16 may be set."""
    zeros, bits_left = divmod(16 - bits, 4)
    digits = "".join(f"{d:x}{d:X}" if d > 9 else str(d) for d in range(0, 16, 1 << bits_left))
    options = ["0{1,4}"]
    for length in range(zeros + 1, 5):
        options.append(rf"{HEX}{{{length - zeros - 1}}}[{digits}]0{{{zeros}}}")
    return _alternation(options)


def _ipv6_network(prefix: int) -> str:
    """Return a pattern of networks with that prefix; zeros after it are written as `::`."""
    full, bits = divmod(prefix, 16)
    if full == 8:
        return rf"(?:{IPV6})/128"
    last = _group_of(bits)
    if full == 7:
        return rf"{_PAIR}{{7}}{last}/{prefix}"
    shorter = [rf"{_PAIR}{{0,{full - 1}}}{_GROUP}"] if full else []
    return _alternation(["", *shorter, rf"{_PAIR}{{{full}}}{last}"]) + f"::/{prefix}"


IPV4_NETWORK = "|".join([IPV4, *map(_ipv4_network, range(33))])
IPV6_NETWORK = "|".join([IPV6, *map(_ipv6_network, range(0, 129, 4))])  # whole hex digits
_SPACE = r"[ \t\n\r]*"
_JSON_LEVELS = 3  # arrays and objects within each other
_REGEX_LEVELS = 2  # groups within each other
_STRING = r'"(?:[^"\\\u0000-\u001F]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*"'
_JSON_NUMBER = r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+\-]?\d{1,2})?"


def _json_text() -> str:
    """Return a pattern of JSON text."""
    value = scalar = f"(?:{_STRING}|{_JSON_NUMBER}|true|false|null)"
    for _ in range(_JSON_LEVELS):
        member = f"{_STRING}{_SPACE}:{_SPACE}{value}"
        value = f"(?:{scalar}|{_listed('[', value, ']')}|{_listed('{', member, '}')})"
    return f"{_SPACE}{value}{_SPACE}"


def _listed(opening: str, part: str, closing: str) -> str:
    further = f"(?:{_SPACE},{_SPACE}{part})*"
    return rf"\{opening}{_SPACE}(?:{part}{further}{_SPACE})?\{closing}"


_UNIT = r"(?:[0-9A-CE-Fa-ce-f][0-9A-Fa-f]|[dD][0-7])[0-9A-Fa-f]{2}"  # no surrogates
_ESCAPED = rf"\\(?:[dDwWsSnrtfv^$\\.*+?()\[\]{{}}|/]|x[0-9A-Fa-f]{{2}}|u{_UNIT})"
_PLAIN = r"[^\\^$.*+?()\[\]{}|\u0000-\u001F\u007F-\u009F]"
_CLASS_PLAIN = r"[^\\\[\]^&~|\-\u0000-\u001F\u007F-\u009F]"


def _ranges() -> str:
    """Return a pattern of ranges that begin at 0, a or A, or end at 9, z or Z."""
    spans = (f"{low}-[{low}-{high}]|[{low}-{high}]-{high}" for low, high in ("09", "az", "AZ"))
    return "|".join(spans)


def _quantifier() -> str:
    """Return a pattern of quantifiers whose two counts are in order."""
    pairs = "|".join(f"{low},[{low}-9]" for low in range(10))
    counts = rf"\d{{1,3}},?|{pairs}|\d,[1-9]\d{{1,2}}|[1-9]\d,[1-9]\d\d"
    return rf"(?:(?:[*+?]|\{{(?:{counts})\}})\??)?"


def _regex_text() -> str:
    """Return a pattern of regexes that ECMAScript, Python and Rust accept."""
    member = rf"(?:{_ranges()}|{_CLASS_PLAIN}|{_ESCAPED})"
    piece = rf"(?:{_PLAIN}|\.|{_ESCAPED}|\[\^?{member}+-?\])"
    edge = r"(?:[\^$]|\\[bB])"
    parts = rf"{edge}|\||{piece}{_quantifier()}"
    pattern = f"(?:{parts})*"
    for _ in range(_REGEX_LEVELS):
        group = rf"(?:\(\?[=!]{pattern}\)|\((?:\?:)?{pattern}\){_quantifier()})"
        pattern = f"(?:{parts}|{group})*"
    return pattern


_DAY = r"(?:0[1-9]|1\d|2[0-8])"
_LEAP = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEAR = r"(?:[1-9]\d\d\d|0[1-9]\d\d|00[1-9]\d|000[1-9])"  # most libraries have no year 0
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[1-9]|1[0-2])-{_DAY}|(?:0[13-9]|1[0-2])-(?:29|30)"
    rf"|(?:0[13578]|1[02])-31)|{_LEAP}-02-29)"
)
_HOUR = r"(?:[01]\d|2[0-3])"
_FRACTION = r"(?:\.\d{1,9})?"  # nanoseconds


def _leap_second(half: int) -> str:
    """Return a pattern of the leap second of a UTC day, local time in half hour `half`."""
    east, west = (f"{n % 48 // 2:02}:{n % 2 * 30:02}" for n in (half + 1, 47 - half))
    utc = "Z|" if half == 47 else ""
    local = f"{half // 2:02}:{half % 2 * 30 + 29}"
    return rf"{local}:60{_FRACTION}(?:{utc}\+{east}|-{west})"


_LEAP_SECONDS = "|".join(map(_leap_second, range(48)))
_TIME = rf"(?:{_HOUR}:[0-5]\d:[0-5]\d{_FRACTION}(?:Z|[+\-]{_HOUR}:[0-5]\d)|{_LEAP_SECONDS})"
_COUNT = r"\d{1,9}"
_SECONDS = rf"(?:{_COUNT}S)?"
_CLOCK = rf"T(?:{_COUNT}H(?:{_COUNT}M{_SECONDS})?|{_COUNT}M{_SECONDS}|{_COUNT}S)"
_MONTHS = rf"{_COUNT}M(?:{_COUNT}D)?"
_DAYS = rf"(?:{_COUNT}Y(?:{_MONTHS})?|{_MONTHS}|{_COUNT}D)"  # RFC 3339, appendix A
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9\-]{0,61}[A-Za-z0-9])?"
_PLAIN_LABEL = rf"(?!..--){_LABEL}"  # labels with `--` there are IDNA's and need tables
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\-]+"
_QUOTED = r"[ !#-\[\]-~]"
_WIDE_ATOM = _ATOM.replace("[", "[\\u0080-\\u{10FFFF}")
_WIDE = r"\p{L}\p{N}"
_WIDE_LABEL = rf"[{_WIDE}](?:[{_WIDE}\p{{M}}\-]*[{_WIDE}\p{{M}}])?"


def _email(atom: str, quoted: str, label: str) -> str:
    """Return a pattern of email addresses (RFC 5321 without comments, RFC 6531)."""
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


def _uri(extra: str = "", private: str = "", relative: bool = False) -> str:
    """Return a pattern of URIs (RFC 3986), or, with `extra` characters, of IRIs (RFC 3987)."""
    free = rf"A-Za-z0-9\-._~{extra}"

    def run(others: str) -> str:
        return rf"(?:[{free}{_MARKS}{others}]|{_ESCAPE})"

    segment = run(":@")
    future = rf"[vV]{HEX}+\.[A-Za-z0-9\-._~{_MARKS}:]+"
    host = rf"(?:\[(?:{IPV6}|{future})\]|{run('')}*)"
    authority = rf"//(?:{run(':')}*@)?{host}(?::\d*)?(?:/{segment}*)*"
    rooted = rf"/(?:{segment}+(?:/{segment}*)*)?"
    query = rf"(?:\?{run(':@/?' + private)}*)?(?:#{run(':@/?')}*)?"
    full = rf"[A-Za-z][A-Za-z0-9+.\-]*:(?:{authority}|{rooted}|{segment}+(?:/{segment}*)*)?{query}"
    if not relative:
        return full
    return rf"{full}|(?:{authority}|{rooted}|{run('@')}+(?:/{segment}*)*)?{query}"


def _multi_host_uri() -> str:
    """Return a pattern of pydantic's `MultiHostUrl`: `postgresql://user@a:1,b:2/c`."""
    free = rf"[A-Za-z0-9\-._~!$&'()*+;=]|{_ESCAPE}"
    host = rf"(?:(?:{free})+|\[(?:{IPV6})\])(?::\d{{1,4}})?"
    path_and_query = rf"(?:/(?:[:@,]|{free})*)*(?:\?(?:[:@/?,]|{free})*)?(?:#(?:[:@/?,]|{free})*)?"
    return rf"[A-Za-z][A-Za-z0-9+.\-]*://(?:(?:[:,]|{free})*@)?{host}(?:,{host})*{path_and_query}"


def _uuid(version: str = "") -> str:
    """Return a pattern of UUIDs of any version, or of one `version` of RFC 9562."""
    if not version:
        return rf"{HEX}{{8}}(?:-{HEX}{{4}}){{3}}-{HEX}{{12}}"
    return rf"{HEX}{{8}}-{HEX}{{4}}-{version}{HEX}{{3}}-[89ABab]{HEX}{{3}}-{HEX}{{12}}"


def _base64(others: str) -> str:
    """Return a pattern of padded base64 (RFC 4648); `others` are the last two characters."""
    any_ = rf"[A-Za-z0-9{others}]"
    return rf"(?:{any_}{{4}})*(?:{any_}[AQgw]==|{any_}{{2}}[AEIMQUYcgkosw048]=)?"


_VARIABLE = rf"(?:\w|{_ESCAPE})(?:\.?(?:\w|{_ESCAPE}))*(?:\*|:[1-9]\d{{0,3}})?"
_POINTER = "(?:/(?:[^~/]|~[01])*)*"
PATTERNS = {
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
    "regex": _regex_text(),
    # Formats of pydantic alone:
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
    "json-string": _json_text(),
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


def is_textual(name: Any) -> bool:
    """Whether a format is known to be about strings, so that it implies that type."""
    return isinstance(name, str) and (name in PATTERNS or name in _ANY_TEXT)


def format_texts(name: str) -> BoundedTexts | None:
    """Return the texts of a format; None if it is not enforced."""
    return (_format_automaton(name), 0, _LENGTHS.get(name)) if name in PATTERNS else None


@lru_cache(maxsize=len(PATTERNS))
def _format_automaton(name: str) -> Automaton:
    pattern = PATTERNS[name]
    return stored_automaton(pattern, file_of(name)) or automaton_of(pattern, whole=True)
