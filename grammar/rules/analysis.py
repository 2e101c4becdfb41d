"""Analysis of grammar rules: which have finite texts, which match the empty text; and dispatch.

Both properties are the least solution of the same equations, found in time linear in the rules.
`dispatch` makes nodes of free text in which words lead to rules: xgrammar's TagDispatch, and
triggered tags in structural tags.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.algebra import TransitionTable, minimal
from dlm.grammar.regex.automaton import Automaton, TooLargeError
from dlm.grammar.regex.nodes import (
    EMPTY,
    NOTHING,
    Alternation,
    Characters,
    Concatenation,
    Literal,
    Node,
    Ranges,
    Reference,
    Repetition,
    Terminal,
    alternation,
    concatenation,
    inverted,
)
from dlm.grammar.rules.rules import Rules


def check_rules(rules: Rules, kind: str = "grammar") -> None:
    """Raise `InvalidGrammarError` if a rule is missing or matches no finite text."""
    for name, node in rules.nodes.items():
        for used in references(node):
            if used not in rules.nodes:
                raise InvalidGrammarError(kind, f"there is no rule {used}", f"rule {name}")
    if rules.root not in rules.nodes:
        raise InvalidGrammarError(kind, f"there is no rule {rules.root}, where a text begins")
    if stuck := endless(rules):
        raise InvalidGrammarError(kind, "no finite text fits", f"rule {stuck[0]}")


def references(node: Node) -> Iterator[str]:
    """Yield the names of the rules that `node` refers to, with repetitions."""
    waiting = [node]
    while waiting:
        match waiting.pop():
            case Reference(name):
                yield name
            case Concatenation(parts) | Alternation(parts):
                waiting += reversed(parts)
            case Repetition(part):
                waiting.append(part)


def reachable(rules: Rules) -> dict[str, set[str]]:
    """Return the rules that can be reached from the root, each with the rules it refers to."""
    found: dict[str, set[str]] = {}
    waiting = [rules.root]
    while waiting:
        if (name := waiting.pop()) not in found:
            found[name] = set(references(rules.nodes[name]))
            waiting += found[name]
    return found


def endless(rules: Rules) -> list[str]:
    """Return the rules that match no finite text."""
    ending = _holding(rules.nodes, _ends)
    return [name for name in rules.nodes if name not in ending]


def without_endless(rules: Rules, root: Node, first: int = 0) -> Node:
    """Return `root` without parts that have no finite text, and remove these parts from the rules.

    Only the rules from the index `first` on are changed. Those that cannot be reached from `root`
    are deleted.
    """
    own = dict(islice(rules.nodes.items(), first, None))
    endless = own.keys() - _holding(own, _ends)
    root = _freed(root, endless)
    reached: dict[str, Node] = {}
    waiting = [root]
    while waiting:
        for name in references(waiting.pop()):
            if name in own and name not in reached:
                reached[name] = _freed(own[name], endless)
                waiting.append(reached[name])
    for name in own:
        if name in reached:
            rules.nodes[name] = reached[name]
        else:
            del rules.nodes[name]
            rules.distinct.discard(name)
    return root


def _ends(leaf: Node) -> bool:
    return not isinstance(leaf, Terminal) or not leaf.automaton.is_empty


def _freed(node: Node, endless: Set[str]) -> Node:
    match node:
        case Reference(name) if name in endless:
            return NOTHING
        case Concatenation(parts):
            freed = tuple(_freed(part, endless) for part in parts)
            return NOTHING if NOTHING in freed else Concatenation(freed)
        case Alternation(options):
            freed = (_freed(option, endless) for option in options)
            return alternation(*(option for option in freed if option != NOTHING))
        case Repetition(part, low, high):
            part = _freed(part, endless)
            if part == NOTHING:
                return NOTHING if low else EMPTY
            return Repetition(part, low, high)
        case Terminal() if not _ends(node):
            return NOTHING
    return node


def nullable(rules: Rules) -> set[str]:
    """Return the rules that match the empty text."""
    return _holding(rules.nodes, _may_be_empty)


def _may_be_empty(leaf: Node) -> bool:
    match leaf:
        case Literal(text):
            return not text
        case Terminal(automaton, low):
            return low == 0 and 0 in automaton.final
    return False


def is_nullable(node: Node, rules: set[str]) -> bool:
    """Whether `node` matches the empty text; `rules` are the rules that do."""
    match node:
        case Reference(name):
            return name in rules
        case Concatenation(parts):
            return all(is_nullable(part, rules) for part in parts)
        case Alternation(options):
            return any(is_nullable(option, rules) for option in options)
        case Repetition(part, low):
            return low == 0 or is_nullable(part, rules)
    return _may_be_empty(node)


@dataclass(eq=False, slots=True)
class _Gate:
    """Counter of the parts of a node that hold; `above` is notified once `needed` parts hold."""

    needed: int
    above: "_Gate | str"  # the node around it, or the rule's name


def _holding(nodes: Mapping[str, Node], leaf: Callable[[Node], bool]) -> set[str]:
    """Return the rules that hold, given which leaves hold.

    A concatenation holds if all parts do, an alternation if one option does. Rules that are not
    among `nodes` hold.
    """
    holding: set[str] = set()
    users: dict[str, list[_Gate]] = {name: [] for name in nodes}

    def count(gate: "_Gate | str") -> None:
        waiting: list[_Gate | str] = [gate]
        while waiting:
            gate = waiting.pop()
            if isinstance(gate, _Gate):
                gate.needed -= 1
                if gate.needed == 0:
                    waiting.append(gate.above)
            elif gate not in holding:
                holding.add(gate)
                waiting += users[gate]

    def build(node: Node, above: _Gate) -> None:
        match node:
            case Reference(name) if name in holding or name not in users:
                count(above)
            case Reference(name):
                users[name].append(above)
            case Concatenation(parts) if parts:
                gate = _Gate(len(parts), above)
                for part in parts:
                    build(part, gate)
            case Alternation(options):
                gate = _Gate(1, above)
                for option in options:
                    build(option, gate)
            case Repetition(part, low) if low > 0:
                build(part, above)
            case Concatenation() | Repetition():
                count(above)
            case Characters(ranges) if not ranges:
                pass
            case _ if leaf(node):
                count(above)

    for name, node in nodes.items():
        build(node, _Gate(1, name))
    return holding


_MOST_CHARACTERS = 4096  # of all words together
_MOST_OVERLAPPING = 16  # words, which take an automaton each


def dispatch(branches: Sequence[tuple[str, Node]], excludes: Sequence[str], loop: bool) -> Node:
    """Return a node of free text up to the first word of `branches`, and then the word's node.

    With `loop` this repeats. Free text contains neither words of `branches` nor `excludes`. If
    several words end at the same character, the longest counts. The text may end wherever it is
    free. Raises `TooLargeError`.
    """
    options: dict[str, list[Node]] = {}
    for word, node in branches:
        options.setdefault(word, []).append(node)
    table = _Words(tuple(options), tuple(excludes))
    free = Terminal(table.free())
    if not options:
        return free
    if table.overlap():
        if len(options) > _MOST_OVERLAPPING:
            raise TooLargeError(f"over {_MOST_OVERLAPPING} words overlap each other")
        heads = [
            Concatenation((Terminal(head), alternation(*nodes)))
            for word, nodes in options.items()
            if not (head := table.up_to(word)).is_empty
        ]
        tagged = alternation(*heads)
    else:
        heads = [concatenation(word, alternation(*nodes)) for word, nodes in options.items()]
        tagged = Concatenation((free, alternation(*heads)))
    if loop:
        return Concatenation((Repetition(tagged), free))
    return alternation(free, tagged)


def free_of(words: Sequence[str]) -> Automaton:
    """Return the automaton of the texts that contain none of `words`. Raises `TooLargeError`."""
    return _Words((), tuple(words)).free()


class _Words:
    """Automaton of all words, whose state is the longest matching suffix (Aho and Corasick)."""

    def __init__(self, words: tuple[str, ...], excludes: tuple[str, ...]):
        self._words, self._excludes = words, tuple(word for word in excludes if word)
        if sum(map(len, (*words, *self._excludes))) > _MOST_CHARACTERS:
            raise TooLargeError(f"its words have over {_MOST_CHARACTERS:,} characters")
        letters = sorted(set("".join((*words, *self._excludes))))
        self._classes: list[Ranges] = [((ord(c), ord(c)),) for c in letters]
        self._classes.append(inverted(r for ranges in self._classes for r in ranges))
        self._ends: dict[int, str] = {}  # by state: the longest word that ends there
        self._excluded: set[int] = set()
        self._rows = self._build({c: i for i, c in enumerate(letters)})

    def _build(self, number: dict[str, int]) -> list[dict[int, int]]:
        children: list[dict[int, int]] = [{}]
        for word in (*self._words, *self._excludes):
            state = 0
            for character in word:
                state = children[state].setdefault(number[character], len(children))
                if state == len(children):
                    children.append({})
            if word in self._words:
                self._ends[state] = word
            if word in self._excludes:
                self._excluded.add(state)
        rows: list[dict[int, int]] = [{} for _ in children]
        rows[0] = dict.fromkeys(range(len(number) + 1), 0) | children[0]
        waiting = [(state, 0) for state in children[0].values()]
        for state, suffix in waiting:  # `waiting` grows in the loop
            if suffix in self._excluded:
                self._excluded.add(state)
            if suffix in self._ends:
                self._ends.setdefault(state, self._ends[suffix])
            rows[state] = rows[suffix] | children[state]
            waiting += [(to, rows[suffix][letter]) for letter, to in children[state].items()]
        return rows

    def free(self) -> Automaton:
        """Return the automaton of the texts that contain no word."""
        return self._automaton({*range(len(self._rows))} - self._ends.keys() - self._excluded)

    def up_to(self, word: str) -> Automaton:
        """Return the automaton of the texts that end with `word` and contain no other word."""
        ends = {state for state, other in self._ends.items() if other == word} - self._excluded
        return self._automaton(ends)

    def _automaton(self, final: set[int]) -> Automaton:
        stopped = self._ends.keys() | self._excluded
        rows = [{} if state in stopped else row for state, row in enumerate(self._rows)]
        return Automaton(*minimal(TransitionTable(self._classes, rows, final)))

    def overlap(self) -> bool:
        """Whether a word contains another word, or begins with the end of one."""
        return any(
            (other in word and not itself)
            or any(other.endswith(word[:n]) for n in range(1, len(word) + (not itself)))
            for word in self._words
            for other, itself in (
                *((other, other == word) for other in self._words),
                *((other, False) for other in self._excludes),
            )
        )
