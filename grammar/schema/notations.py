"""Patterns of notations that nest, and have no pattern of their own: JSON text and regexes.

They are kept to a few levels, and to what every reader takes: less than there is, and never more.
"""

_SPACE = r"[ \t\n\r]*"
_JSON_LEVELS = 3  # arrays and objects within each other
_REGEX_LEVELS = 2  # groups within each other
_STRING = r'"(?:[^"\\\u0000-\u001F]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*"'
_NUMBER = r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+\-]?\d{1,2})?"


def json_text() -> str:
    """Return a pattern of JSON text."""
    value = scalar = f"(?:{_STRING}|{_NUMBER}|true|false|null)"
    for _ in range(_JSON_LEVELS):
        member = f"{_STRING}{_SPACE}:{_SPACE}{value}"
        value = f"(?:{scalar}|{_listed('[', value, ']')}|{_listed('{', member, '}')})"
    return f"{_SPACE}{value}{_SPACE}"


def _listed(opening: str, part: str, closing: str) -> str:
    rest = f"(?:{_SPACE},{_SPACE}{part})*"
    return rf"\{opening}{_SPACE}(?:{part}{rest}{_SPACE})?\{closing}"


_UNIT = r"(?:[0-9A-CE-Fa-ce-f][0-9A-Fa-f]|[dD][0-7])[0-9A-Fa-f]{2}"  # no half of a pair
_ESCAPED = rf"\\(?:[dDwWsSnrtfv^$\\.*+?()\[\]{{}}|/]|x[0-9A-Fa-f]{{2}}|u{_UNIT})"
_PLAIN = r"[^\\^$.*+?()\[\]{}|\u0000-\u001F\u007F-\u009F]"
_CLASS_PLAIN = r"[^\\\[\]^&~|\-\u0000-\u001F\u007F-\u009F]"


def _ranges() -> str:
    """Ranges of a class that begin or end where digits, or letters of one case, do."""
    ways = (f"{low}-[{low}-{high}]|[{low}-{high}]-{high}" for low, high in ("09", "az", "AZ"))
    return "|".join(ways)


def _quantifier() -> str:
    """Counts are in order: of one digit each, or the second one is longer."""
    pairs = "|".join(f"{low},[{low}-9]" for low in range(10))
    counts = rf"\d{{1,3}},?|{pairs}|\d,[1-9]\d{{1,2}}|[1-9]\d,[1-9]\d\d"
    return rf"(?:(?:[*+?]|\{{(?:{counts})\}})\??)?"


def regex() -> str:
    """Return a pattern of regexes that ECMAScript, Python and Rust read."""
    member = rf"(?:{_ranges()}|{_CLASS_PLAIN}|{_ESCAPED})"
    one = rf"(?:{_PLAIN}|\.|{_ESCAPED}|\[\^?{member}+-?\])"
    edge = r"(?:[\^$]|\\[bB])"
    parts = rf"{edge}|\||{one}{_quantifier()}"
    pattern = f"(?:{parts})*"
    for _ in range(_REGEX_LEVELS):
        group = rf"(?:\(\?[=!]{pattern}\)|\((?:\?:)?{pattern}\){_quantifier()})"
        pattern = f"(?:{parts}|{group})*"
    return pattern
