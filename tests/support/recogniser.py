"""Whether rules accept a text, found naively: an oracle that shares no code with the parser.

From each place in the text, each node has a set of places where it may end; rules that refer to
themselves are looked at again until no set grows.
"""

import re

from dlm.grammar.regex import (
    Alternation,
    AnyOrder,
    Automaton,
    Characters,
    Concatenation,
    Literal,
    Node,
    Reference,
    Repetition,
    SpecialToken,
    Spelling,
    Terminal,
)
from dlm.grammar.rules import Rules

_HEX = re.compile("u([0-9a-fA-F]{4})")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class Recogniser:
    """Reads texts by `rules`; a control token is one character of `tokens`, by its id."""

    def __init__(self, rules: Rules, tokens: dict[int, str] | None = None):
        self._rules, self._tokens = rules, tokens or {}

    def accepts(self, text: str, root: Node | None = None) -> bool:
        self._text = text
        self._ends: dict[tuple[str, int], set[int]] = {}
        start = root or Reference(self._rules.root)
        found: set[int] = set()
        while True:
            self._grown = False
            self._read: set[tuple[str, int]] = set()
            found = self._node(start, 0)
            if not self._grown:
                return len(text) in found

    def _node(self, node: Node, at: int) -> set[int]:
        text = self._text
        match node:
            case Literal(word):
                return {at + len(word)} if text.startswith(word, at) else set()
            case Characters(ranges):
                inside = at < len(text) and any(a <= ord(text[at]) <= b for a, b in ranges)
                return {at + 1} if inside else set()
            case SpecialToken(ids):
                known = {self._tokens[i] for i in self._tokens if i in ids}
                return {at + 1} if text[at : at + 1] in known else set()
            case Reference(name):
                return self._rule(name, at)
            case Concatenation(parts):
                ends = {at}
                for part in parts:
                    ends = {end for start in ends for end in self._node(part, start)}
                return ends
            case Alternation(options):
                return {end for option in options for end in self._node(option, at)}
            case Repetition(part, low, high):
                return self._repeated(part, low, high, at)
            case AnyOrder():
                return self._in_any_order(node, at)
            case Terminal():
                return self._terminal(node, at)
        raise TypeError(node)

    def _rule(self, name: str, at: int) -> set[int]:
        key = name, at
        ends = self._ends.setdefault(key, set())
        if key not in self._read:
            self._read.add(key)
            found = self._node(self._rules.nodes[name], at)
            if not found <= ends:
                ends |= found
                self._grown = True
        return set(ends)

    def _repeated(self, part: Node, low: int, high: int | None, at: int) -> set[int]:
        ends, edge, count = (set() if low else {at}), {at}, 0
        seen: set[frozenset[int]] = set()
        while edge and (high is None or count < high):
            edge = {end for start in edge for end in self._node(part, start)}
            count += 1
            if count >= low:
                if edge <= ends and frozenset(edge) in seen:
                    break
                seen.add(frozenset(edge))
                ends |= edge
        return ends

    def _in_any_order(self, node: AnyOrder, at: int) -> set[int]:
        """Try each sequence of parts; those of equal parts so far are tried once."""
        required = {i for i, part in enumerate(node.parts) if part.required}
        begin = (
            at,
            frozenset[int](),
            -1,
            False,
            0,
        )  # place, parts, latest ordered, any last, count
        ends, seen, waiting = set[int](), {begin}, [begin]
        while waiting:
            place, used, latest, closing, count = waiting.pop()
            if count and required <= used and node.low <= count:
                ends.add(place)
            for i, part in enumerate(node.parts):
                late = part.ordered and (closing or i < latest)
                if late or (i in used and not (part.repeats or part.again)) or count == node.high:
                    continue
                starts = self._node(node.separator, place) if count else {place}
                counts = not part.again or i not in used
                order = i if part.ordered else latest, closing or part.last
                after = used | {i}, *order, count + counts
                new = {(e, *after) for start in starts for e in self._node(part.node, start)} - seen
                seen |= new
                waiting += new
        return ends

    def _terminal(self, node: Terminal, at: int) -> set[int]:
        text, ends = self._text, set()
        quoted = node.spelling is Spelling.QUOTED
        if quoted:
            if text[at : at + 1] != '"':
                return ends
            at += 1
        state, count = 0, 0
        while True:
            if count >= node.low and state in node.automaton.final:
                if not quoted:
                    ends.add(at)
                elif text[at : at + 1] == '"':
                    ends.add(at + 1)
            if count == node.high or (quoted and text[at : at + 1] == '"'):
                return ends
            point, at = self._character(at, node.spelling)
            state = _step(node.automaton, state, point)
            if state is None:
                return ends
            count += 1

    def _character(self, at: int, spelling: Spelling) -> tuple[int | None, int]:
        """The code point spelled there, and where it ends."""
        text = self._text
        if at >= len(text) or text[at] in self._tokens.values():
            return None, at
        if spelling is Spelling.RAW:
            return ord(text[at]), at + 1
        if text[at] != "\\":
            return (None if text[at] < " " else ord(text[at])), at + 1
        letter = text[at + 1 : at + 2]
        if letter in _ESCAPES and letter:
            return ord(_ESCAPES[letter]), at + 2
        if not (found := _HEX.match(text, at + 1)):
            return None, at
        point = int(found[1], 16)
        if (
            0xD800 <= point < 0xDC00
            and (found := _HEX.match(text, at + 7))
            and text[at + 6] == "\\"
        ):
            low = int(found[1], 16)
            if 0xDC00 <= low < 0xE000:
                return 0x10000 + ((point - 0xD800) << 10) + low - 0xDC00, at + 12
        return (None if 0xD800 <= point < 0xE000 else point), at + 6


def _step(automaton: Automaton, state: int, point: int | None) -> int | None:
    for low, high, to in automaton.edges[state]:
        if point is not None and low <= point <= high:
            return to
    return None
