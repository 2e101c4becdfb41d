"""Parser of regexes, with the meaning of ECMA-262 under its flag u.

If Python's `re` or Rust's `regex` reads a pattern differently, the result matches what all of them
match, so that an answer is valid for every engine. Inside a negation it matches what any of them
does. Syntax beyond ECMA-262 is accepted if no dialect contradicts it: flags in groups,
`(?P<name>`, unneeded escapes, literal braces. Syntax that no automaton can express, or that
dialects read differently, is an error with its name and position.
"""

import re

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.characters import EVERY, Ranges, inverted, union
from dlm.grammar.regex.nodes import (
    EMPTY,
    NOTHING,
    Alternation,
    Characters,
    Concatenation,
    Lookahead,
    Lookbehind,
    Node,
    Repetition,
    alternation,
    concatenation,
)
from dlm.grammar.regex.unicode_sets import LINE_ENDS, any_case, named, property_

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
