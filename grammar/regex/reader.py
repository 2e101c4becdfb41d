r"""Parser of regexes, with the meaning of ECMA-262 under its flag u, and sets of characters.

If Python's `re` or Rust's `regex` reads a pattern differently, the result matches what all of them
match, so that an answer is valid for every engine. Inside a negation it matches what any of them
does. Syntax beyond ECMA-262 is accepted if no dialect contradicts it: flags in groups,
`(?P<name>`, unneeded escapes, literal braces. Syntax that no automaton can express, or that
dialects read differently, is an error with its name and position.

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

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.limits import RESULTS
from dlm.grammar.regex.nodes import (
    EMPTY,
    EVERY,
    NOTHING,
    Alternation,
    Characters,
    Concatenation,
    Lookahead,
    Lookbehind,
    Node,
    Ranges,
    Repetition,
    alternation,
    concatenation,
    inverted,
    union,
)

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


_NEWLINE: Ranges = ((0x0A, 0x0A),)
START = Lookbehind(Characters(EVERY), False)
END = Lookahead(Characters(EVERY), False)
_NOT_FIRST, _NOT_LAST = Lookbehind(Characters(EVERY)), Lookahead(Characters(EVERY))
_LAST_FEED = Repetition(Characters(_NEWLINE), 0, 1)  # Python's `$` also matches before it

_SYNTAX = frozenset("\\^$.*+?()[]{}|")
_MOST_GROUPS = 50  # levels of nested groups
_MOST_DIGITS = 15  # of a count
_QUANTIFIER = re.compile(r"([*+?])|\{(\d+)(,(\d*))?\}", re.ASCII)
_STRAY = re.compile(r"[*+?]|\{(?:\d+,?\d*|,\d*)\}", re.ASCII)
_NAMED = re.compile(r"\?(?:P?<[^\W\d]\w*>|:)")
_LOOK = re.compile(r"\(\?(<?)([=!])")
_FLAGS = re.compile(r"\?([ims]*)(?:-([ims]+))?([:)])")
_CODE = re.compile(
    r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,8})\}|c([A-Za-z])|(0)(?!\d)",
    re.ASCII,
)
_LOW_HALF = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_NAMED_SETS = re.compile(r"\\(?:([dDwWsS])|.)", re.DOTALL)
_PROPERTY = re.compile(r"([pP])\{([^{}]*)\}")
_CONTROL = {"n": 0x0A, "t": 0x09, "r": 0x0D, "f": 0x0C, "v": 0x0B}
_GROUPS = {  # unsupported groups, by what follows `(`
    "?>": "an atomic group",
    "?(": "a condition",
    "?P=": "a reference to a group",
    "?#": "a comment",
    "?|": "a branch reset",
}
_ANCHORS = {"A": "^", "Z": "$", "z": "$"}  # anchors of other dialects


def read_regex(pattern: str, wide: bool = False) -> Node:
    """Return the nodes of `pattern`, which match what all engines match, or, if `wide`, any does.

    Raises `InvalidGrammarError` with the position in its `where`.
    """
    return _PatternReader(pattern, wide).whole()


class _PatternReader:
    def __init__(self, pattern: str, wide: bool):
        self._pattern, self._wide, self._at = pattern, wide, 0
        self._flags: frozenset[str] = frozenset()
        self._depth = 0
        self._lookbehinds = 0  # nested around the current position

    def whole(self) -> Node:
        node = self._alternation()
        if self._at < len(self._pattern):
            raise self._error("`)` without a group")
        return node

    def _error(self, reason: str) -> InvalidGrammarError:
        return InvalidGrammarError("pattern", reason, f"character {self._at}")

    def _next(self, text: str) -> bool:
        """Whether `text` is next; if so, move after it."""
        is_next = self._pattern.startswith(text, self._at)
        self._at += len(text) * is_next
        return is_next

    def _match(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        """Return the match of `expression` here, if any, and move after it."""
        if match := expression.match(self._pattern, self._at):
            self._at = match.end()
        return match

    def _alternation(self) -> Node:
        flags = self._flags  # `(?i)` holds up to the end of its group
        options = [self._sequence()]
        while self._next("|"):
            options.append(self._sequence())
        self._flags = flags
        return options[0] if len(options) == 1 else Alternation(tuple(options))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            if self._pattern[self._at] in _SYNTAX:
                parts.append(self._assertion() or self._repeated(self._atom()))
            else:
                parts.append(self._repeated(self._characters(self._cased(self._character()))))
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def _repeated(self, node: Node) -> Node:
        if self._pattern[self._at : self._at + 1] not in "*+?{":
            return node
        if not (quantifier := self._match(_QUANTIFIER)):
            return node
        sign, low, comma, high = quantifier.groups()
        if max(len(low or ""), len(high or "")) > _MOST_DIGITS:
            raise self._error(f"a count has over {_MOST_DIGITS} digits")
        if self._next("+"):
            raise self._error("possessive quantifiers are not known in ECMAScript")
        self._next("?")  # a lazy quantifier matches the same texts
        if sign:
            return Repetition(node, int(sign == "+"), 1 if sign == "?" else None)
        least, most = int(low), int(low) if comma is None else int(high) if high else None
        if most is not None and most < least:
            raise self._error("the counts of a repetition are out of order")
        return Repetition(node, least, most)

    def _assertion(self) -> Node | None:
        begin = self._at
        if look := self._match(_LOOK):
            self._lookbehinds += bool(look[1])
            self._wide ^= look[2] == "!"
            node = (Lookbehind if look[1] else Lookahead)(self._group(begin), look[2] == "=")
            self._wide ^= look[2] == "!"
            self._lookbehinds -= bool(look[1])
        elif self._next("^"):
            node = Lookbehind(self._no_line_end(), False) if "m" in self._flags else START
        elif self._next("$"):
            end = Concatenation((_LAST_FEED, END)) if self._wide else END
            node = Lookahead(self._no_line_end(), False) if "m" in self._flags else end
        elif self._next("\\b") or self._next("\\B"):
            node = self._edge() if self._pattern[begin + 1] == "b" else self._no_edge()
        else:
            return None
        if self._lookbehinds and not isinstance(node, Lookbehind):
            raise self._error("no lookahead, `$`, `\\b` or `\\B` can be within a lookbehind")
        if _QUANTIFIER.match(self._pattern, self._at):
            raise self._error("an assertion reads no character and cannot be repeated")
        return node

    def _words(self) -> tuple[Node, Node, Node]:
        """Return the word characters of all engines, those of some only, and those of any."""
        narrow, wide = (self._cased(named("w", wide)) for wide in (False, True))
        some = inverted((*inverted(wide), *narrow))
        return Characters(narrow), Characters(some), Characters(wide)

    def _edge(self) -> Node:
        """Return `\\b`: the characters on its sides are a word's and another, or the text's end."""
        every, some, any_ = self._words()
        options = [
            (Lookbehind(every), Lookahead(any_, False)),
            (Lookbehind(any_, False), Lookahead(every)),
        ]
        if self._wide:  # characters about which engines disagree are on one side of some engine's
            options = [
                (Lookbehind(every), Lookahead(every, False)),
                (Lookbehind(every, False), Lookahead(every)),
                (Lookbehind(some), Lookahead(any_, False)),
                (Lookbehind(any_, False), Lookahead(some)),
            ]
        return alternation(*(concatenation(*option) for option in options))

    def _no_edge(self) -> Node:
        """Return `\\B`, the opposite of `\\b`."""
        every, some, any_ = self._words()
        if self._wide:
            within = Lookbehind(any_), Lookahead(any_)
            outside = Lookbehind(every, False), Lookahead(every, False)
            options = [within, outside]
        else:
            outside = Lookbehind(any_, False), Lookahead(any_, False)
            options = [
                (Lookbehind(every), Lookahead(every)),
                (Lookbehind(some), Lookahead(some)),
                (_NOT_FIRST, *outside),  # Python before 3.14: no `\\B` in an empty text
                (*outside, _NOT_LAST),
            ]
        return alternation(*(concatenation(*option) for option in options))

    def _no_line_end(self) -> Node:
        return Characters(inverted(LINE_ENDS if self._wide else _NEWLINE))

    def _atom(self) -> Node:
        begin = self._at
        if self._next("("):
            return self._opened(begin)
        if self._next("["):
            return self._characters(self._class(begin))
        if self._next("."):
            ends = _NEWLINE if self._wide else LINE_ENDS
            return Characters(EVERY if "s" in self._flags else inverted(ends))
        if _STRAY.match(self._pattern, begin):
            raise self._error(f"`{self._pattern[begin]}` repeats nothing: escape it if it is text")
        return self._characters(self._cased(self._character()))

    @staticmethod
    def _characters(ranges: Ranges) -> Node:
        """Return one character of `ranges` without surrogates."""
        kept = ranges
        if any(low < 0xE000 and high >= 0xD800 for low, high in ranges):
            kept = inverted(inverted(ranges))
        return Characters(kept) if kept else NOTHING

    def _opened(self, begin: int) -> Node:
        if not self._pattern.startswith("?", self._at) or self._match(_NAMED):
            return self._group(begin)
        if not (flags := self._match(_FLAGS)):
            name = next((v for k, v in _GROUPS.items() if self._next(k)), "this kind of group")
            raise self._error(f"{name} is not known in ECMAScript")
        before = self._flags
        self._flags = (before | set(flags[1])) - set(flags[2] or "")
        if flags[3] == ")":
            return EMPTY
        node = self._group(begin)
        self._flags = before
        return node

    def _group(self, begin: int) -> Node:
        """Return the content of a group, and move after its closing bracket."""
        self._depth += 1
        if self._depth > _MOST_GROUPS:
            raise self._error(f"over {_MOST_GROUPS} groups are nested")
        node = self._alternation()
        if not self._next(")"):
            self._at = begin
            raise self._error("this group does not end")
        self._depth -= 1
        return node

    def _cased(self, ranges: Ranges) -> Ranges:
        return any_case(ranges) if "i" in self._flags else ranges

    def _class(self, begin: int) -> Ranges:
        r"""Return the characters that all engines find in a class, or, if `wide`, that any does.

        Each character of a text is in all of `\d`, `\w` and `\s` that engines read differently, or
        in none. So a class with opposites, as `[\w\W]`, is read both ways.
        """
        inverse = self._next("^")
        if self._pattern.find("]", self._at) == self._at < self._pattern.rfind("]"):
            raise self._error("a first `]` ends a class in ECMAScript, not in Python: escape it")
        at, wide = self._at, self._wide

        def members(in_any: bool) -> Ranges:
            self._at, self._wide = at, in_any
            ranges = self._cased(union(self._members(begin)))
            self._wide = wide
            return inverted(ranges) if inverse else ranges

        narrow = members(False)
        letters = {*_NAMED_SETS.findall(self._pattern, at, self._at)} - {""}
        if not letters:
            return narrow
        upper = any(map(str.isupper, letters))
        if upper and any(map(str.islower, letters)):
            broad = members(True)
            if wide:
                return union((*narrow, *broad))
            return inverted((*inverted(narrow), *inverted(broad)))
        return members(True) if wide != (inverse != upper) else narrow

    def _members(self, begin: int) -> list[tuple[int, int]]:
        """Return the members of the class that begins at `begin`, and move after it."""
        members: list[tuple[int, int]] = []
        while not self._next("]"):
            if self._at >= len(self._pattern):
                self._at = begin
                raise self._error("this class does not end")
            if self._pattern.startswith(("[:", "[.", "[="), self._at):
                raise self._error("classes like `[:alpha:]` are not known in ECMAScript")
            member = self._character(within=True)
            if self._pattern.startswith("-", self._at) and self._pattern[self._at + 1 :][:1] != "]":
                self._at += 1
                if self._at >= len(self._pattern):
                    continue
                last = self._character(within=True)
                (low, _), (_, high) = member[0], last[-1]
                if any(ranges[0][0] != ranges[-1][1] for ranges in (member, last)):
                    member = (*member, *last, (0x2D, 0x2D))  # `[\w-.]` is not a range
                elif low > high:
                    raise self._error("the ends of a range are out of order")
                else:
                    member = ((low, high),)
            members += member
        return members

    def _character(self, within: bool = False) -> Ranges:
        """Return the characters of one character or escape, `within` a class or not."""
        if not self._next("\\"):
            self._at += 1
            point = ord(self._pattern[self._at - 1])
        elif escape := self._match(_CODE):
            point = self._point(escape)
        elif escape := self._match(_PROPERTY):
            if (ranges := property_(escape[2])) is None:
                raise self._error(f"{escape[2]!r:.40} is no Unicode property of ECMA-262")
            return inverted(ranges) if escape[1] == "P" else ranges
        else:
            letter = self._pattern[self._at : self._at + 1]
            self._at += 1
            if letter and letter in "dDwWsS":
                inverse = letter.isupper()
                wide = self._wide != (inverse and not within)  # a class is read both ways
                ranges = self._cased(named(letter.lower(), wide))
                return inverted(ranges) if inverse else ranges
            point = self._escaped(letter, within)
        return ((point, point),)

    def _escaped(self, letter: str, within: bool) -> int:
        if not letter:
            raise self._error("the pattern ends with a backslash")
        if not letter.isalnum():
            return ord(letter)
        if within and letter == "b":
            return 0x08
        if letter in _CONTROL:
            return _CONTROL[letter]
        if letter.isdigit() or letter == "k":
            raise self._error("an automaton cannot match a reference to a group")
        if letter in _ANCHORS:
            raise self._error(f"`\\{letter}` is not known in ECMAScript: use `{_ANCHORS[letter]}`")
        raise self._error(f"`\\{letter}` has no meaning in ECMAScript")

    def _point(self, escape: re.Match[str]) -> int:
        code, unit, long, control, _ = escape.groups()
        if control:
            return ord(control) % 32
        point = int(code or unit or long or "0", 16)
        if point > 0x10FFFF:
            raise self._error("a code point is beyond 10FFFF")
        if unit and 0xD800 <= point < 0xDC00 and (low := self._match(_LOW_HALF)):
            return 0x10000 + (point - 0xD800 << 10) + int(low[1], 16) - 0xDC00
        return point
