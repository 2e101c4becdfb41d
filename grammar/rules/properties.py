"""Properties of rules: which match a finite text, and which the empty text.

Both are the least solution of the same equations, found in time linear in the rules.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from itertools import islice
from operator import is_

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.nodes import (
    EMPTY,
    NOTHING,
    Alternation,
    AnyOrder,
    Characters,
    Concatenation,
    Literal,
    Node,
    Reference,
    Repetition,
    Terminal,
    alternation,
    is_nothing,
)
from dlm.grammar.rules.rules import Rules, references

_LEAVES = (Terminal, Literal)


def check_rules(rules: Rules, kind: str = "grammar") -> None:
    """Raise `InvalidGrammarError` if a rule matches no finite text."""
    ending = _holding(rules.nodes, _ends)
    for name in rules.nodes:
        if name not in ending:
            raise InvalidGrammarError(kind, "no finite text fits", f"rule {name}")


def without_endless(rules: Rules, root: Node, start: int = 0) -> Node:
    """Return `root` without parts that have no finite text, and remove these parts from the rules.

    Only the rules from the index `start` on are changed. Those that cannot be reached from `root`
    are deleted.
    """
    own = dict(islice(rules.nodes.items(), start, None))
    endless = own.keys() - _holding(own, _ends)
    root, waiting = _without(root, endless)
    reached: dict[str, Node] = {}
    while waiting:
        name = waiting.pop()
        if name in own and name not in reached:
            reached[name], used = _without(own[name], endless)
            waiting += used
    for name in own:
        if name in reached:
            rules.nodes[name] = reached[name]
        else:
            del rules.nodes[name]
            rules.distinct.discard(name)
    return root


def _ends(leaf: Node) -> bool:
    if isinstance(leaf, Terminal):
        return bool(leaf.automaton.final)
    return not isinstance(leaf, Characters) or bool(leaf.ranges)


def _without(node: Node, endless: Set[str]) -> tuple[Node, list[str]]:
    """Return `node` without parts that have no finite text, and the rules it refers to."""
    names: list[str] = []
    waiting, sound = [node], True
    while waiting and sound:
        part = waiting.pop()
        if isinstance(part, Concatenation):  # the most frequent nodes come first
            waiting += part.parts
            continue
        if isinstance(part, _LEAVES):
            sound = _ends(part)
            continue
        match part:
            case Reference(name):
                names.append(name)
                sound = name not in endless
            case Alternation(options):
                waiting += options
                sound = len(options) > 1
            case Repetition():
                waiting.append(part.part)
            case AnyOrder():
                waiting.append(part.separator)
                waiting += [component.node for component in part.parts]
                sound = len(part.parts) >= max(1, part.low) or any(
                    component.repeats for component in part.parts
                )
    if sound:
        return node, names
    freed = _freed(node, endless)
    return freed, [*references(freed)]


def _freed(node: Node, endless: Set[str]) -> Node:
    """Return `node` without parts that have no finite text; the same object if all have one."""
    match node:
        case Reference(name) if name in endless:
            return NOTHING
        case Concatenation(parts):
            freed = [_freed(part, endless) for part in parts]
            if any(map(is_nothing, freed)):
                return NOTHING
            same = all(map(is_, freed, parts))
            return node if same else Concatenation(tuple(freed))
        case Alternation(options):
            freed = [_freed(option, endless) for option in options]
            kept = [option for option in freed if not is_nothing(option)]
            same = len(kept) == len(options) > 1 and all(map(is_, kept, options))
            return node if same else alternation(*kept)
        case Repetition(part, low, high):
            freed = _freed(part, endless)
            if is_nothing(freed):
                return NOTHING if low else EMPTY
            return node if freed is part else Repetition(freed, low, high)
        case AnyOrder():
            return _freed_parts(node, endless)
        case Terminal() if not _ends(node):
            return NOTHING
    return node


def _freed_parts(node: AnyOrder, endless: Set[str]) -> Node:
    """Return `node` without parts that have no finite text; `NOTHING` if these are needed."""
    kept = []
    for part in node.parts:
        freed = _freed(part.node, endless)
        if not is_nothing(freed):
            kept.append(part if freed is part.node else replace(part, node=freed))
        elif part.required:
            return NOTHING
    repeats = any(part.repeats for part in kept)
    if len(kept) < max(1, node.low) and not repeats:
        return NOTHING
    separator = _freed(node.separator, endless)
    same = len(kept) == len(node.parts) and all(map(is_, kept, node.parts))
    if same and separator is node.separator:
        return node
    return replace(node, parts=tuple(kept), separator=separator)


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
    return _holds(node, rules.__contains__, _may_be_empty)


def _holds(node: Node, rule: Callable[[str], bool], leaf: Callable[[Node], bool]) -> bool:
    """Whether a node holds, given which rules and which leaves do."""
    if isinstance(node, _LEAVES):  # the most frequent nodes
        return leaf(node)
    match node:
        case Reference(name):
            return rule(name)
        case Concatenation(parts):
            return all(_holds(part, rule, leaf) for part in parts)
        case Alternation(options):
            return any(_holds(option, rule, leaf) for option in options)
        case Repetition(part, low):
            return low == 0 or _holds(part, rule, leaf)
        case AnyOrder(parts, _, low):
            kept = [part for part in parts if _holds(part.node, rule, leaf)]
            required = sum(part.required for part in kept) == sum(p.required for p in parts)
            enough = any(part.repeats for part in kept) or len(kept) >= max(1, low)
            return required and enough
    return leaf(node)


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

    def known(name: str) -> bool:
        return name in holding or name not in nodes

    unsure: list[str] = []  # rules that do not hold if no rule before them does
    for name in reversed([*nodes]):
        if _holds(nodes[name], known, leaf):
            holding.add(name)
        else:
            unsure.append(name)
    users: dict[str, list[_Gate]] = {name: [] for name in unsure}

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
            case AnyOrder(parts, _, low):
                required = [part.node for part in parts if part.required]
                every = _Gate(len(required) + 1, above)
                enough = _Gate(1, every)
                several = _Gate(max(1, low), enough)
                for needed in required:
                    build(needed, every)
                for part in parts:
                    build(part.node, enough if part.repeats else several)
            case Concatenation() | Repetition():
                count(above)
            case _ if leaf(node):
                count(above)

    for name in unsure:
        build(nodes[name], _Gate(1, name))
    return holding
