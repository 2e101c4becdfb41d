"""Reads what xgrammar makes of a grammar: its rules, as the states and edges of a network.

xgrammar serialises a grammar in two forms: as expressions, and once it is compiled as automata. The
second is read only for single expressions that xgrammar alone can build, regexes and tag
dispatches, because it repeats all automata of a grammar for each of its rules.
"""

import json
from typing import Any

import xgrammar as xgr

from dlm.grammar.parse.network import Bytes, Call, Edge, Network, Skip, Tokens
from dlm.grammar.rules.expressions import (
    CHOICES,
    CLASS,
    EMPTY,
    OTHER_TOKENS,
    REPEAT,
    RULE,
    SEQUENCE,
    STAR,
    STRING,
    TOKENS,
    Expression,
    expressions,
    options,
)

# Kinds of the edges of xgrammar's automata; bytes are edges of kind 0 and more.
_EDGE_SKIP, _EDGE_CALL, _EDGE_REPEAT, _EDGE_TOKENS, _EDGE_OTHER_TOKENS = -1, -2, -4, -5, -6
_ESCAPE = ord("\\")
_PLAIN = [-1, False, -1, -1, "", False, None]  # of a rule: no look-ahead, no bounds, no names
# Code points by the length of their UTF-8, surrogates left out.
_LENGTHS = [(0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF)]


def read_network(grammar: xgr.Grammar, far: int | None = None) -> Network:
    """The network of a grammar that compiles; `RuntimeError` for rules that count or are lazy.

    Repeated characters are loose where there may be more than `far`.
    """
    source = json.loads(grammar.serialize_json())
    for name, _, _, _, *bounds in source["rules"]:
        if [*bounds[:2], *bounds[3:]] != [-1, -1, False, None] or source["suffix_stop_infos"]:
            raise RuntimeError(f"rule {name}: max_tokens, max_chars and laziness are not supported")
    return _Builder(source, far).network()


def loosened(grammar: xgr.Grammar, far: int) -> xgr.Grammar:
    """`grammar`, but any number of characters where more than `far` of them may be repeated.

    xgrammar makes masks for each round: that takes seconds for a string of at most 100 characters.
    """
    source = json.loads(grammar.serialize_json())
    built, data = _Builder(source, far), source["grammar_expr_data"]
    if not built.loose:
        return grammar
    for number in sorted(built.loose):
        rule, least, _ = built.expressions[number][1]
        if built.single(rule):
            data[source["grammar_expr_indptr"][number] + 4] = -1
        else:
            _unroll(source, number, built.options(rule), least)
    return xgr.Grammar.deserialize_json(json.dumps(source))


def _unroll(source: dict[str, Any], number: int, options: list[list[int]], least: int) -> None:
    """Write the repetition of a rule's options as rules that each read one and call the next.

    Of a rule with several options that is repeated as such, xgrammar keeps no masks.
    """
    rules, data, starts = (
        source["rules"],
        source["grammar_expr_data"],
        source["grammar_expr_indptr"],
    )

    def add(kind: int, parts: list[int]) -> int:
        starts.append(len(data))
        data.extend([kind, len(parts), *parts])
        return len(starts) - 1

    following = len(rules)
    for left in range(least + 1):  # the last of them, which goes on for ever, is the first here
        call = add(RULE, [following])
        read = [add(SEQUENCE, [*option, call]) for option in options]
        body = add(CHOICES, read if left else [add(EMPTY, []), *read])
        following = len(rules)
        rules.append([f"repetition_{number}_{left}", body, *_PLAIN])
    starts[number] = len(data)
    data += [RULE, 1, following]


class _Builder:
    """Expressions to states: each kind leads from a state to a state."""

    def __init__(self, source: dict[str, Any], far: int | None):
        """`source` is a serialised grammar."""
        self._source, self.expressions = source, expressions(source)
        self._edges: list[list[Edge]] = []
        self._start: list[int] = []  # where rules begin: ours, then those of automata
        self._final: set[int] = set()  # where they end
        self.loose = set() if far is None else self._loose(far)

    def network(self) -> Network:
        bodies = [rule[1] for rule in self._source["rules"]]
        self._start += (self._new() for _ in bodies)
        for body, begin in zip(bodies, list(self._start), strict=True):
            self._final.add(self._build(body, begin))
        return Network(self._edges, self._start, self._final, self._source["root_rule_id"])

    def _loose(self, far: int) -> set[int]:
        """Repetitions of one character, often, up to another that has to follow: where that is, is
        no question then, however far the matcher thinks that they may go."""
        either = [
            (part, self._repeats(part, far) and self._ends(part, after))
            for kind, parts in self.expressions
            if kind == SEQUENCE
            for part, after in zip(parts, [*parts[1:], None], strict=True)
        ]
        return {part for part, loose in either if loose} - {part for part, no in either if not no}

    def _repeats(self, number: int, far: int) -> bool:
        kind, parts = self.expressions[number]
        if kind != REPEAT or self._heads(parts[0]) is None:
            return False
        rule, least, most = parts
        return least <= far < most or (most < 0 and not self.single(rule))

    def _ends(self, number: int, after: int | None) -> bool:
        """What comes `after` the repetition begins none of its characters."""
        kind, parts = (None, []) if after is None else self.expressions[after]
        heads = self._heads(self.expressions[number][1][0])
        if kind == STRING and parts and heads is not None and 0 <= parts[0] < 0x80:
            return not any(_begins(head, parts[0]) for head in heads)
        return kind == TOKENS

    def options(self, rule: int) -> list[list[int]]:
        return options(self.expressions, self._source["rules"][rule][1])

    def single(self, rule: int) -> bool:
        """It is a class of characters, and nothing else."""
        return [head for head, _ in self._heads(rule) or ()] == [CLASS]

    def _heads(self, rule: int) -> list[Expression] | None:
        """What the characters of a rule begin with: classes, and backslashes that escape one more.

        None if the rule is not of single characters.
        """
        heads = []
        for option in self.options(rule):
            parts = [self.expressions[part] for part in option]
            kinds = [kind for kind, _ in parts]
            said = parts[0][1] if kinds[:1] == [STRING] else []
            escaped = kinds == [STRING] and said[:-1] == [_ESCAPE]
            escaping = kinds == [STRING, CLASS] and said == [_ESCAPE]
            if not (escaped or escaping or kinds == [CLASS]):
                return None
            heads.append(parts[0])
        return heads

    def _new(self) -> int:
        self._edges.append([])
        return len(self._edges) - 1

    def _build(self, number: int, state: int) -> int:
        """Add an expression behind `state`; says where it ends."""
        kind, parts = self.expressions[number]
        if kind == STRING:
            for byte in (part & 0xFF for part in parts):  # some of them are signed
                state = self._add(state, Bytes(byte, byte, self._new()))
        elif kind == CLASS:
            return self._characters(parts, state, self._new())
        elif kind == STAR:
            loop = self._add(state, Skip(self._new()))
            return self._characters(parts, loop, loop)
        elif kind == RULE:
            return self._add(state, Call(parts[0], self._new()))
        elif kind == REPEAT:
            rule, least, most = parts
            bound = None if most < 0 else most
            return self._add(state, Call(rule, self._new(), least, bound, number in self.loose))
        elif kind in (TOKENS, OTHER_TOKENS):
            return self._add(state, Tokens(frozenset(parts), kind == TOKENS, self._new()))
        elif kind == SEQUENCE:
            for part in parts:
                state = self._build(part, state)
        elif kind == CHOICES:
            end = self._new()
            for part in parts:
                self._add(self._build(part, self._add(state, Skip(self._new()))), Skip(end))
            return end
        elif kind != EMPTY:
            return self._automaton(number, state)
        return state

    def _add(self, state: int, edge: Edge) -> int:
        self._edges[state].append(edge)
        return edge.to

    def _characters(self, parts: list[int], state: int, end: int) -> int:
        """A character class: whether it is negated, then its ranges of code points."""
        negated, bounds = parts[0], parts[1:]
        ranges = sorted(zip(bounds[::2], bounds[1::2], strict=True))
        for low, high in _complement(ranges) if negated else ranges:
            for first, last in _LENGTHS:
                if low <= last and high >= first:
                    self._utf8(
                        chr(max(low, first)).encode(), chr(min(high, last)).encode(), state, end
                    )
        return end

    def _utf8(self, low: bytes, high: bytes, state: int, end: int) -> None:
        """All characters from `low` to `high`, whose UTF-8 is of one length."""
        if len(low) == 1:
            self._add(state, Bytes(low[0], high[0], end))
            return
        rest = len(low) - 1
        least, most = b"\x80" * rest, b"\xbf" * rest
        if low[0] == high[0]:
            self._utf8(low[1:], high[1:], self._add(state, Bytes(low[0], low[0], self._new())), end)
            return
        first, last = low[0], high[0]
        if low[1:] != least:
            self._utf8(low[1:], most, self._add(state, Bytes(first, first, self._new())), end)
            first += 1
        if high[1:] != most:
            self._utf8(least, high[1:], self._add(state, Bytes(last, last, self._new())), end)
            last -= 1
        if first <= last:
            self._utf8(least, most, self._add(state, Bytes(first, last, self._new())), end)

    def _automaton(self, number: int, state: int) -> int:
        """An expression that xgrammar compiles alone; it may make further rules for it."""
        grammar = self._compiled_alone(number)
        automaton, root = grammar["complete_fsm"], grammar["root_rule_id"]
        data, ends = automaton["edges"]["data_"], automaton["edges"]["indptr_"]
        moved, end = [self._new() for _ in ends[1:]], self._new()
        ids = {rule[0]: i for i, rule in enumerate(self._source["rules"])}
        rules = []  # by number there, ours
        for there, rule in enumerate(grammar["rules"]):
            rules.append(ids.get(rule[0], len(self._start)))
            if there != root and rules[-1] == len(self._start):
                _, begin, finals, *_ = grammar["per_rule_fsms"][there][0]
                self._start.append(moved[begin])
                self._final |= {moved[final] for final in finals}
        for at, first, last in zip(moved, ends, ends[1:], strict=False):
            for kind, value, to in data[first:last]:
                edge = _edge(kind, value, moved[to], automaton["edge_aux_data"], rules)
                self._add(at, edge)
        _, begin, finals, *_ = grammar["per_rule_fsms"][root][0]
        self._add(state, Skip(moved[begin]))
        for final in finals:
            self._add(moved[final], Skip(end))
        return end

    def _compiled_alone(self, number: int) -> dict[str, Any]:
        """A grammar of one rule, that expression, serialised; the rules that it names are stubs."""
        source = self._source
        data, starts = list(source["grammar_expr_data"]), list(source["grammar_expr_indptr"])
        for kind, value in (
            (STRING, ord("x")),
            (SEQUENCE, len(starts)),
            (CHOICES, len(starts) + 1),
        ):
            starts.append(len(data))
            data += [kind, 1, value]
        stubs = [[rule[0], len(starts) - 1, *_PLAIN] for rule in source["rules"]]
        alone = {
            **source,
            "grammar_expr_data": data,
            "grammar_expr_indptr": starts,
            "rules": [*stubs, ["", number, *_PLAIN]],
            "root_rule_id": len(stubs),
        }
        vocabulary = xgr.TokenizerInfo([b"x", b""], stop_token_ids=[1])  # any will do
        compiler = xgr.GrammarCompiler(vocabulary, max_threads=1, cache_enabled=False)
        compiled = compiler.compile_grammar(xgr.Grammar.deserialize_json(json.dumps(alone)))
        return json.loads(compiled.grammar.serialize_json())


def _begins(head: Expression, byte: int) -> bool:
    """A class or a literal may begin with this ASCII character."""
    kind, parts = head
    if kind == STRING:
        return parts[0] == byte
    ranges = zip(parts[1::2], parts[2::2], strict=True)
    return any(low <= byte <= high for low, high in ranges) != bool(parts[0])


def _edge(kind: int, value: int, to: int, aux: list[int], rules: list[int]) -> Edge:
    """One edge of xgrammar's automata, whose rules are `rules` here."""
    if kind >= 0:
        return Bytes(kind, value, to)
    if kind == _EDGE_SKIP:
        return Skip(to)
    if kind == _EDGE_CALL:
        return Call(rules[value], to)
    if kind == _EDGE_REPEAT:
        rule, least, most = aux[value : value + 3]
        return Call(rules[rule], to, least, None if most < 0 else most)
    if kind in (_EDGE_TOKENS, _EDGE_OTHER_TOKENS):
        ids = aux[value + 1 : value + 1 + aux[value]]
        return Tokens(frozenset(ids), kind == _EDGE_TOKENS, to)
    raise ValueError(f"xgrammar has an edge of kind {kind}, which is not known here")


def _complement(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The code points that none of the sorted `ranges` holds."""
    gaps, next_free = [], 0
    for low, high in ranges:
        if low > next_free:
            gaps.append((next_free, low - 1))
        next_free = max(next_free, high + 1)
    return [*gaps, (next_free, 0x10FFFF)] if next_free <= 0x10FFFF else gaps
