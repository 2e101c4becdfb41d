"""Conversion of the regular parts of rules to automata, which are read without a parser stack.

A part of a rule is converted if its automaton has few states, else it is left unchanged. A rule
that is recursive at one of its ends, as is `ws ::= " " ws | ""`, is converted as a loop.
"""

from collections.abc import Callable
from contextlib import suppress

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import Automaton, TooLargeError
from dlm.grammar.regex.build import determinized
from dlm.grammar.regex.edges import has_assertions
from dlm.grammar.regex.lengths import any_of_length
from dlm.grammar.regex.nodes import (
    EMPTY,
    Alternation,
    AnyOrder,
    Characters,
    Concatenation,
    Literal,
    Node,
    Reference,
    Repetition,
    Spelling,
    Terminal,
    alternation,
    concatenation,
    mapped,
)
from dlm.grammar.regex.patterns import bounded, parse
from dlm.grammar.rules.properties import is_nullable, nullable
from dlm.grammar.rules.rules import Rules, reachable, references

_MOST_STATES = 256  # of an automaton made of parts; one of words may have more
_MOST_SIZE = 1024  # of a part that is tried: states of automata, characters of literals
_MOST_WORK = 32_768  # total size of all parts that are tried
_EMPTY_TEXT = Automaton.words([""])
_FEWEST_IN_BLOCK, _MOST_IN_BLOCK = 4, 10  # parts of a long repetition that one terminal reads
_COUNTED = 16  # a single character repeated more often is counted, not unrolled


def with_terminals(rules: Rules) -> Rules:
    """Return rules of the same texts, in which regular rules replace the references to them."""
    return _Folding(rules).rules()


def folded(node: Node) -> Node:
    """Return `node`, which refers to no rule, as few terminals; long repetitions stay counted."""
    rules = Rules()
    rules.nodes[rules.root] = node
    return with_terminals(rules).nodes[rules.root]


def matching(pattern: str) -> Node:
    """Return a terminal of the texts that a regex matches as a whole.

    If its automaton is too large and it has no assertions, its nodes are returned instead. Raises
    `InvalidGrammarError`, also if nothing matches.
    """
    node = parse(pattern, whole=True)
    try:
        automaton, low, high = bounded(pattern, whole=True)
    except InvalidGrammarError:
        if has_assertions(node):
            raise
        return node
    if not any_of_length(automaton, low, high):
        raise InvalidGrammarError("pattern", "nothing matches it")
    return Terminal(automaton, low, high)


class _Folding:
    """Conversion of the rules of one grammar, in the order of their references."""

    def __init__(self, rules: Rules):
        self._old, self._uses = rules, reachable(rules)
        self._nullable = nullable(rules)
        self._regular: dict[str, Node] = {}
        self._made: dict[Node, Terminal | None] = {}
        self._work = 0

    def rules(self) -> Rules:
        new = Rules(self._old.root)
        for name in self._in_order():
            node = self._fold(_looped(name, self._old.nodes[name]))
            if _is_regular(node) or isinstance(node, Terminal):
                self._regular[name] = node
            if name not in self._regular or name == new.root:
                new.nodes[name] = node
        for name in set().union(*map(references, new.nodes.values())) - new.nodes.keys():
            new.nodes[name] = self._regular[name]  # used before it was known to be regular
        return new

    def _in_order(self) -> list[str]:
        """Return the rules, each after those it refers to; recursive ones and their users last."""
        users: dict[str, list[str]] = {name: [] for name in self._uses}
        missing = {}
        for name, used in self._uses.items():
            missing[name] = len(used - {name})
            for other in used - {name}:
                users[other].append(name)
        order = [name for name, count in missing.items() if count == 0]
        for name in order:
            for user in users[name]:
                missing[user] -= 1
                if missing[user] == 0:
                    order.append(user)
        return order + [name for name, count in missing.items() if count > 0]

    def _fold(self, node: Node) -> Node:
        match node:
            case Reference(name):
                return self._regular.get(name, node)
            case Concatenation(parts):
                return self._concatenation([self._fold(part) for part in parts])
            case Alternation(options):
                return self._alternation([self._fold(option) for option in options])
            case Repetition():
                return self._repeated(node)
            case AnyOrder():
                return mapped(node, self._fold)
        return node

    def _repeated(self, node: Repetition) -> Node:
        part, low, high = self._fold(node.part), node.low, node.high
        if high == 0 or part in (EMPTY, Literal("")):
            return Literal("")
        if is_nullable(part, self._nullable):
            low = 0
            if isinstance(part, Terminal) and _is_regular(part):
                with suppress(TooLargeError):
                    part = Terminal(part.automaton.difference(_EMPTY_TEXT))
        node = Repetition(part, low, high)
        if not _is_regular(part):
            return node
        if max(low, high or 0) > _COUNTED and _is_character(part):
            return Terminal(determinized(Repetition(part)), low, high)
        return self._terminal(node) or self._in_blocks(node) or node

    def _in_blocks(self, node: Repetition) -> Node | None:
        """Return a long repetition of a small part as repetitions of blocks; None if not possible.

        A token may hold many parts, and is looked up faster within a block than rule by rule.
        `x{1,100}` becomes `x` `(x{25}){0,3}` `x{0,24}`, where each number of `x` is one of blocks
        and of single ones.
        """
        part, low, high = node.part, node.low, node.high
        most = min(_MOST_IN_BLOCK, _MOST_STATES // _size(part))
        if most < _FEWEST_IN_BLOCK:
            return None

        def block(least: int, greatest: int) -> Node:
            small = Repetition(part, least, greatest)
            return Literal("") if greatest == 0 else self._terminal(small) or small

        parts: list[Node] = []
        rounds, single = divmod(low, most)
        if rounds:
            parts.append(Repetition(block(most, most), rounds, rounds))
        parts.append(block(single, single))
        if high is None:
            parts.append(self._terminal(Repetition(part)) or Repetition(part))
        elif high > low:
            parts.append(self._up_to(high - low, most, block))
        return concatenation(*(piece for piece in parts if piece != Literal("")))

    @staticmethod
    def _up_to(number: int, most: int, block: Callable[[int, int], Node]) -> Node:
        """Return up to `number` parts, in blocks of at most `most` parts."""
        sizes = range(most, _FEWEST_IN_BLOCK - 1, -1)
        if number < most:
            return block(0, number)
        if size := next((size for size in sizes if (number + 1) % size == 0), 0):
            rounds = (number + 1) // size - 1
            return concatenation(Repetition(block(size, size), 0, rounds), block(0, size - 1))
        rounds, remainder = divmod(number, most)
        whole = block(most, most)
        return alternation(
            concatenation(Repetition(whole, 0, rounds - 1), block(0, most - 1)),
            concatenation(Repetition(whole, rounds, rounds), block(0, remainder)),
        )

    def _concatenation(self, parts: list[Node]) -> Node:
        """Return the concatenation of `parts`, with neighbours that are regular joined."""
        flat: list[Node] = []
        for part in parts:
            for inner in part.parts if isinstance(part, Concatenation) else (part,):
                if isinstance(inner, Literal) and flat and isinstance(flat[-1], Literal):
                    flat[-1] = Literal(flat[-1].text + inner.text)
                elif inner != Literal(""):
                    flat.append(inner)
        made, start = [], 0
        while start < len(flat):
            end = start
            while end < len(flat) and _is_regular(flat[end]):
                end += 1
            made += self._merged(flat[start:end], Concatenation) or [flat[end]]
            start = max(end, start + 1)
        return concatenation(*made) if made else Literal("")

    def _alternation(self, options: list[Node]) -> Node:
        flat: dict[Node, None] = {}
        for option in options:
            for inner in option.options if isinstance(option, Alternation) else (option,):
                flat[inner] = None
        words = [option.text for option in flat if isinstance(option, Literal)]
        regular = [o for o in flat if _is_regular(o) and not isinstance(o, Literal)]
        if len(words) > 1:
            regular.append(Terminal(Automaton.words(words)))
        else:
            regular += map(Literal, words)
        others = [option for option in flat if not _is_regular(option)]
        return alternation(*self._merged(regular, Alternation), *others)

    def _merged(self, nodes: list[Node], join: Callable[[tuple[Node, ...]], Node]) -> list[Node]:
        """Return regular nodes joined into few terminals: one if it is small, else half by half."""
        if len(nodes) < 2:
            return nodes
        if made := self._terminal(join(tuple(nodes))):
            return [made]
        middle = len(nodes) // 2
        return self._merged(nodes[:middle], join) + self._merged(nodes[middle:], join)

    def _terminal(self, node: Node) -> Terminal | None:
        """Return the terminal of a regular node; None if it is too large."""
        if node not in self._made:
            self._made[node] = None
            if (size := _size(node)) <= _MOST_SIZE and self._work + size <= _MOST_WORK:
                self._work += size
                try:
                    automaton = determinized(node)
                except TooLargeError:
                    self._work += _MOST_WORK // 8
                    return None
                if len(automaton.edges) <= _MOST_STATES:
                    self._made[node] = Terminal(automaton)
        return self._made[node]


def _is_regular(node: Node) -> bool:
    match node:
        case Terminal(_, low, high, spelling):
            return (low, high, spelling) == (0, None, Spelling.RAW)
    return isinstance(node, Literal | Characters)


def _is_character(node: Node) -> bool:
    """Whether every text of `node` is a single character."""
    match node:
        case Literal(text):
            return len(text) == 1
        case Terminal(automaton):
            one_step = len(automaton.edges) == 2 and all(to == 1 for _, _, to in automaton.edges[0])
            return one_step and automaton.final == {1} and not automaton.edges[1]
    return isinstance(node, Characters)


def _size(node: Node) -> int:
    match node:
        case Literal(text):
            return len(text) + 1
        case Terminal(automaton):
            return len(automaton.edges)
        case Concatenation(parts) | Alternation(parts):
            return sum(map(_size, parts))
        case Repetition(part, low, high):
            return _size(part) * max(low, high or 0, 1)
    return 1


def _looped(name: str, node: Node) -> Node:
    """Return a rule that ends or begins with itself as a loop (Arden's lemma)."""
    again, done = _apart(name, node, -1)
    before, others = _apart(name, node, 0)
    if again and not (before and any(name in references(part) for part in again)):
        return concatenation(Repetition(alternation(*again)), alternation(*done))
    if before and not any(name in references(part) for part in before):
        return concatenation(alternation(*others), Repetition(alternation(*before)))
    return node


def _apart(name: str, node: Node, end: int) -> tuple[list[Node], list[Node]]:
    """Split a rule into the rests beside its recursion at this `end`, and all other options.

    `end` is 0 for the first part of a concatenation and -1 for the last.
    """
    match node:
        case Reference(other) if other == name:
            return [EMPTY], []
        case Alternation(options):
            pairs = [_apart(name, option, end) for option in options]
            return [n for again, _ in pairs for n in again], [n for _, done in pairs for n in done]
        case Repetition(part, 0, 1):
            again, done = _apart(name, part, end)
            return (again, [*done, EMPTY]) if again else ([], [node])
        case Concatenation(parts) if parts:
            again, done = _apart(name, parts[end], end)
            if again:
                remainder = parts[1:] if end == 0 else parts[:-1]
                return [_beside(remainder, n, end) for n in again], [
                    _beside(remainder, n, end) for n in done
                ]
    return [], [node]


def _beside(remainder: tuple[Node, ...], node: Node, end: int) -> Node:
    return concatenation(*((node, *remainder) if end == 0 else (*remainder, node)))
