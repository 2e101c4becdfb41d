r"""Sets of characters with a name: `\d`, `\w`, `\s`, Unicode's properties, and variants of case.

Engines differ in `\d`, `\w` and `\s`: ECMA-262 has mostly ASCII characters, Python's `re` and
Rust's `regex` those of all scripts. So each escape has a narrow set, which all engines match, and a
wide one, which any engine matches. General categories come from `unicodedata`. Scripts and binary
properties come from the `regex` library, which takes about 10 ms per property.
"""

import re
import sys
import unicodedata
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, groupby, starmap

import regex

from dlm.grammar.limits import RESULTS
from dlm.grammar.regex.characters import EVERY, Ranges, inverted, union

DIGITS: Ranges = ((0x30, 0x39),)
WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACES: Ranges = (
    *((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
)  # without U+FEFF, a space in ECMA-262 only
_OTHER_SPACES: Ranges = ((0x1C, 0x1F), (0x85, 0x85), (0xFEFF, 0xFEFF))  # in some engines
LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_CASED = (0, 0x3000), (0xA640, 0xAC00), (0xFB00, 0x12000), (0x16E00, 0x17000), (0x1E900, 0x1EA00)
_PLANES = 0x32400  # no letters and no digits from here on


@lru_cache(maxsize=8)
def named(letter: str, wide: bool) -> Ranges:
    """Return the characters of `\\d`, `\\w` or `\\s` in all engines, or, if `wide`, in any."""
    if not wide:
        return {"d": DIGITS, "w": WORD, "s": SPACES}[letter]
    if letter == "s":
        return union([*SPACES, *_OTHER_SPACES])
    kinds = ("Nd",) if letter == "d" else ("L", "N", "M", "Pc")
    joiners = () if letter == "d" else ((0x200C, 0x200D),)
    return union(
        [*joiners, *(span for category, span in _runs(_PLANES) if category.startswith(kinds))]
    )


def _runs(end: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the runs of code points before `end` with one general category, after the category."""
    start = 0
    for category, run in groupby(map(unicodedata.category, map(chr, range(end)))):
        size = sum(1 for _ in run)
        yield category, (start, start + size - 1)
        start += size


def any_case(ranges: Ranges) -> Ranges:
    """Return `ranges` with all characters that differ in case only (simple case folding)."""
    variants, points = _variants()
    cased = list(ranges)
    for low, high in ranges:
        for point in points[bisect_left(points, low) : bisect_left(points, high + 1)]:
            cased += ((other, other) for other in variants[point])
    return union(cased)


@lru_cache(maxsize=1)
def _variants() -> tuple[dict[int, list[int]], list[int]]:
    """Return the case variants of each character, and the sorted characters that have any."""
    alike: dict[str, list[int]] = {}
    for character in map(chr, chain.from_iterable(starmap(range, _CASED))):
        for folded in (character.casefold(), character.lower()):
            if len(folded) == 1:
                alike.setdefault(folded, []).append(ord(character))
                break
    variants = {point: group for group in alike.values() if len(group) > 1 for point in group}
    return variants, sorted(variants)


_CATEGORIES = {  # PropertyValueAliases.txt of Unicode
    name: short
    for line in """
        L Letter|LC Cased_Letter|Lu Uppercase_Letter|Ll Lowercase_Letter|Lt Titlecase_Letter
        Lm Modifier_Letter|Lo Other_Letter|M Mark Combining_Mark|Mn Nonspacing_Mark|Mc Spacing_Mark
        Me Enclosing_Mark|N Number|Nd Decimal_Number digit|Nl Letter_Number|No Other_Number
        P Punctuation punct|Pc Connector_Punctuation|Pd Dash_Punctuation|Ps Open_Punctuation
        Pe Close_Punctuation|Pi Initial_Punctuation|Pf Final_Punctuation|Po Other_Punctuation
        S Symbol|Sm Math_Symbol|Sc Currency_Symbol|Sk Modifier_Symbol|So Other_Symbol|Z Separator
        Zs Space_Separator|Zl Line_Separator|Zp Paragraph_Separator|C Other|Cc Control cntrl
        Cf Format|Cs Surrogate|Co Private_Use|Cn Unassigned
    """.replace("\n", "|").split("|")
    if line.strip()
    for short, *names in [line.split()]
    for name in (short, *names)
}
_BINARY = frozenset(  # binary-unicode-properties of ECMA-262, with their short names
    """
    ASCII_Hex_Digit AHex Alphabetic Alpha Bidi_Control Bidi_C Bidi_Mirrored Bidi_M Case_Ignorable CI
    Cased Changes_When_Casefolded CWCF Changes_When_Casemapped CWCM Changes_When_Lowercased CWL
    Changes_When_NFKC_Casefolded CWKCF Changes_When_Titlecased CWT Changes_When_Uppercased CWU Dash
    Default_Ignorable_Code_Point DI Deprecated Dep Diacritic Dia Emoji Emoji_Component EComp
    Emoji_Modifier EMod Emoji_Modifier_Base EBase Emoji_Presentation EPres Extended_Pictographic
    ExtPict Extender Ext Grapheme_Base Gr_Base Grapheme_Extend Gr_Ext Hex_Digit Hex
    IDS_Binary_Operator IDSB IDS_Trinary_Operator IDST ID_Continue IDC ID_Start IDS Ideographic Ideo
    Join_Control Join_C Logical_Order_Exception LOE Lowercase Lower Math Noncharacter_Code_Point
    NChar Pattern_Syntax Pat_Syn Pattern_White_Space Pat_WS Quotation_Mark QMark Radical
    Regional_Indicator RI Sentence_Terminal STerm Soft_Dotted SD Terminal_Punctuation Term
    Unified_Ideograph UIdeo Uppercase Upper Variation_Selector VS White_Space space XID_Continue
    XIDC XID_Start XIDS
    """.split()
)
_NFKC_CASEFOLDED = ("Changes_When_NFKC_Casefolded", "CWKCF")  # unknown to the library
_CATEGORY = ("General_Category", "gc")
_SCRIPT = {"Script": "sc", "sc": "sc", "Script_Extensions": "scx", "scx": "scx"}
_PROPERTIES = re.compile(r"\\[pP]\{([^{}]*)\}")
_VALUE = re.compile(r"[A-Za-z][A-Za-z_]*")
_SURROGATE = (0xD800, 0xDFFF)
_UNCHANGED = ((0x3400, 0x9FFF), (0xAC00, 0xD7A3), (0x17000, 0x18D8F), (0x20000, 0x2F7FF))


@RESULTS.remembered
def property_(text: str) -> Ranges | None:
    """Return the characters of the Unicode property `text`, as in `\\p{text}`.

    None if ECMA-262 has no such property. A script's name alone is allowed, as in Rust and PCRE.
    """
    name, equals, value = text.partition("=")
    if equals and name in _SCRIPT:
        return _script(_SCRIPT[name], value)
    if equals:
        return _category(value) if name in _CATEGORY else None
    if text in ("Any", "ASCII"):
        return EVERY if text == "Any" else ((0, 0x7F),)
    if text == "Assigned":
        return inverted(_categories()["Cn"])
    if text in _NFKC_CASEFOLDED:
        return _changed_by_nfkc_casefold()
    if text in _BINARY:
        return _matching(rf"\p{{{text}=Yes}}")
    return _category(text) or _script("sc", text)


def looked_up(pattern: str) -> set[str]:
    """Return the properties in a pattern for which `property_` examines every character."""
    named = {text.rpartition("=")[2] for text in _PROPERTIES.findall(pattern)}
    return named.difference(_CATEGORIES, ("Any", "ASCII", "Assigned"))


def _category(name: str) -> Ranges | None:
    if (short := _CATEGORIES.get(name)) is None:
        return None
    kinds = ("Lu", "Ll", "Lt") if short == "LC" else (short,)
    spans = (r for kind, ranges in _categories().items() if kind.startswith(kinds) for r in ranges)
    return inverted(inverted(spans))  # without surrogates


def _script(name: str, value: str) -> Ranges | None:
    if not _VALUE.fullmatch(value):
        return None
    try:
        return _matching(rf"\p{{{name}={value}}}")
    except regex.error:
        return None


def _matching(pattern: str) -> Ranges:
    """Return the characters that the `regex` library matches. Raises `regex.error`."""
    runs = regex.compile(f"(?:{pattern})+").finditer(_all_characters())
    return inverted(inverted((run.start(), run.end() - 1) for run in runs))


@lru_cache(maxsize=1)
def _all_characters() -> str:
    """Return a string with every code point at its own index, 4.5 MB."""
    points = array("I", range(sys.maxunicode + 1)).tobytes()
    return points.decode(f"utf-32-{sys.byteorder[0]}e", "surrogatepass")


@lru_cache(maxsize=1)
def _categories() -> dict[str, list[tuple[int, int]]]:
    spans: dict[str, list[tuple[int, int]]] = {}
    for kind, span in _runs(sys.maxunicode + 1):
        spans.setdefault(kind, []).append(span)
    return spans


@lru_cache(maxsize=1)
def _changed_by_nfkc_casefold() -> Ranges:
    """Return the characters that NFKC_Casefold changes or removes."""
    ignorable = _matching(r"\p{DI}")
    assigned = (r for kind, ranges in _categories().items() if kind != "Cn" for r in ranges)
    private = _categories()["Co"]
    candidates = inverted((*_UNCHANGED, *private, *inverted(assigned), _SURROGATE))
    changed = (
        (point, point)
        for low, high in candidates
        for point in range(low, high + 1)
        if _nfkc_casefold(chr(point)) != chr(point)
    )
    return union((*ignorable, *changed))


def _nfkc_casefold(text: str) -> str:
    folded = unicodedata.normalize("NFD", text).casefold()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", folded).casefold())
