"""Rules written as EBNF in xgrammar's dialect, so that xgrammar's own matcher can judge them."""

from itertools import count
from typing import Any

import xgrammar as xgr

from dlm.grammar.regex import (
    Alternation,
    AnyOrder,
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

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _")
_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 47: "/", 92: "\\"}
_MOST_STATES = 20_000  # of a terminal, once its bounds are states

BYTES = xgr.TokenizerInfo([*(bytes([i]) for i in range(256)), b""], stop_token_ids=[256])
COMPILER = xgr.GrammarCompiler(BYTES, cache_enabled=False, max_threads=1)


def accepts(grammar: Rules | str | xgr.Grammar, text: str) -> bool:
    return matches(grammar, [text])[0]


def matches(grammar: Rules | str | xgr.Grammar, texts: list[str]) -> list[bool]:
    """Return whether xgrammar accepts each text; a `grammar` that is text is EBNF."""
    if isinstance(grammar, Rules):
        grammar = to_ebnf(grammar)
    if isinstance(grammar, str):
        grammar = xgr.Grammar.from_ebnf(grammar)
    compiled = COMPILER.compile_grammar(grammar)
    found = []
    for text in texts:
        matcher = xgr.GrammarMatcher(compiled)
        found.append(matcher.accept_string(text) and matcher.is_completed())
    return found


def to_ebnf(rules: Rules) -> str:
    return _Writer(rules).text()


class _Writer:
    def __init__(self, rules: Rules):
        self._rules, self._numbers = rules, count()
        self._names = {name: f"r{i}" for i, name in enumerate(rules.nodes)}
        self._names[rules.root] = "root"
        self._lines: list[str] = []
        self._terminals: dict[Terminal, str] = {}

    def text(self) -> str:
        for name, node in self._rules.nodes.items():
            self._lines.append(f"{self._names[name]} ::= {self._node(node)}")
        return "\n".join(self._lines)

    def _node(self, node: Node) -> str:
        match node:
            case Literal(text):
                return '"' + "".join(_escaped(ord(c)) for c in text) + '"'
            case Characters(ranges):
                return _class(ranges)
            case Reference(name):
                return self._names[name]
            case SpecialToken(ids, True):
                return f"Token({', '.join(map(str, sorted(ids)))})"
            case Concatenation(parts):
                return f"({' '.join(map(self._node, parts))})" if parts else '""'
            case Alternation(options):
                return f"({' | '.join(map(self._node, options))})" if options else "[]"
            case Repetition(_, _, 0):
                return '""'
            case Repetition(part, low, high):
                return f"({self._node(part)}){{{low},{'' if high is None else high}}}"
            case AnyOrder():
                return self._any_order(node)
            case Terminal():
                if node not in self._terminals:
                    self._terminals[node] = self._terminal(node)
                return self._terminals[node]
        raise TypeError(f"{node!r:.80} cannot be written")

    def _any_order(self, node: AnyOrder) -> str:
        """Return the name of the first rule. A rule is a sequence of parts as far as it matters."""
        stem = f"o{next(self._numbers)}"
        separator, parts = self._node(node.separator), [self._node(p.node) for p in node.parts]
        required = {i for i, part in enumerate(node.parts) if part.required}
        most = node.low if node.high is None else node.high
        begin = (frozenset[int](), -1, False, 0)
        known = {begin: f"{stem}_0"}
        waiting = [begin]
        for situation in waiting:  # it grows meanwhile
            assert len(waiting) < _MOST_STATES, "too large to be written"
            used, latest, closing, count = situation
            first = not (used or count)
            options = ['""'] if not first and required <= used and count >= node.low else []
            for i, part in enumerate(node.parts):
                late = part.ordered and (closing or i < latest)
                full = node.high is not None and count >= node.high
                if late or full or (i in used and not (part.repeats or part.again)):
                    continue
                late_from = i if part.ordered else latest
                more = not part.again or i not in used
                after = used | {i}, late_from, closing or part.last, min(count + more, most)
                if after not in known:
                    known[after] = f"{stem}_{len(known)}"
                    waiting.append(after)
                options.append(" ".join([*([] if first else [separator]), parts[i], known[after]]))
            self._lines.append(f"{known[situation]} ::= {' | '.join(options) or '[]'}")
        return known[begin]

    def _terminal(self, node: Terminal) -> str:
        """Return the name of the first rule. A rule is a state and the count of characters."""
        edges, final = node.automaton.edges, node.automaton.final
        most = node.low if node.high is None else node.high
        stem, waiting, seen = f"t{next(self._numbers)}", [(0, 0)], {(0, 0)}
        for state, done in waiting:  # it grows meanwhile
            assert len(waiting) < _MOST_STATES, "too large to be written"
            options = ['""'] if state in final and done >= node.low else []
            for low, high, to in edges[state]:
                if node.high is None or done < node.high:
                    target = to, min(done + 1, most)
                    if target not in seen:
                        seen.add(target)
                        waiting.append(target)
                    options.append(f"{_spelled(low, high, node.spelling)} {stem}_{to}_{target[1]}")
            self._lines.append(f"{stem}_{state}_{done} ::= {' | '.join(options) or '[]'}")
        name = f"{stem}_0_0"
        return f'("\\"" {name} "\\"")' if node.spelling is Spelling.QUOTED else name


def _escaped(point: int) -> str:
    return chr(point) if chr(point) in _PLAIN else f"\\U{point:08x}"


def _class(ranges: Any) -> str:
    return "[" + "".join(f"{_escaped(low)}-{_escaped(high)}" for low, high in ranges) + "]"


def _spelled(low: int, high: int, spelling: Spelling) -> str:
    """One character as bytes, or as any of JSON's escapes of it."""
    if spelling is Spelling.RAW:
        return _class([(low, high)])
    raw = [(a, b) for a, b in ((32, 33), (35, 91), (93, 0x10FFFF)) if a <= high and b >= low]
    options = [_class([(max(a, low), min(b, high))]) for a, b in raw]
    options += [f'"\\\\{_escaped(ord(s))}"' for p, s in _SHORT.items() if low <= p <= high]
    for first, second in _units(low, high):
        options.append(f'"\\\\u" {_hex(*first)}' + (f' "\\\\u" {_hex(*second)}' if second else ""))
    return f"({' | '.join(options)})"


def _units(low: int, high: int) -> list[tuple[Any, Any]]:
    """Ranges of UTF-16 units, of pairs of them beyond the first plane."""
    found = [((low, min(high, 0xFFFF)), None)] if low < 0x10000 else []
    at = max(low, 0x10000)
    while at <= high:
        end = min(high, at | 0x3FF)
        if at & 0x3FF == 0 and end & 0x3FF == 0x3FF:
            while end + 0x400 <= high:
                end += 0x400
        one, other = at - 0x10000, end - 0x10000
        leads = 0xD800 + (one >> 10), 0xD800 + (other >> 10)
        found.append((leads, (0xDC00 + (one & 0x3FF), 0xDC00 + (other & 0x3FF))))
        at = end + 1
    return found


def _hex(low: int, high: int, digits: int = 4) -> str:
    """Return a pattern of the numbers from `low` to `high` in `digits` hexadecimal digits."""
    unit = 16 ** (digits - 1)
    if digits == 1:
        known = [d for d in "0123456789abcdefABCDEF" if low <= int(d, 16) <= high]
        return f"[{''.join(known)}]"
    options = []
    for digit in range(low // unit, high // unit + 1):
        first, last = max(low, digit * unit), min(high, (digit + 1) * unit - 1)
        rest = _hex(first - digit * unit, last - digit * unit, digits - 1)
        options.append(f"{_hex(digit, digit, 1)} {rest}")
    return f"({' | '.join(options)})"
