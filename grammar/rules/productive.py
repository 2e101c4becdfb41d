"""Rules without what never ends: options of which no finite text can come. Knows no notation."""

from collections import defaultdict
from itertools import islice

from dlm.grammar.rules.nodes import (
    EMPTY,
    NOTHING,
    Alternation,
    Concatenation,
    Node,
    Reference,
    Repetition,
    Terminal,
    alternation,
)
from dlm.grammar.rules.rules import Rules


def without_endless(rules: Rules, root: Node, first: int = 0) -> Node:
    """`root`, it and the rules from the `first` on freed of all that has no finite text.

    Rules that nothing leads to from `root` are gone then, too.
    """
    own = dict(islice(rules.nodes.items(), first, None))
    productive = _productive(own)
    freed = {
        name: _freed(node, own, productive) for name, node in own.items() if name in productive
    }
    root = _freed(root, own, productive)
    reached: set[str] = set()
    waiting = [root]
    while waiting:
        for name in _references(waiting.pop()):
            if name in freed and name not in reached:
                reached.add(name)
                waiting.append(freed[name])
    for name in own:
        if name in reached:
            rules.nodes[name] = freed[name]
        else:
            del rules.nodes[name]
    return root


def _productive(own: dict[str, Node]) -> set[str]:
    users: dict[str, set[str]] = defaultdict(set)
    for name, node in own.items():
        for used in _references(node):
            users[used].add(name)
    found: set[str] = set()
    waiting = list(own)
    while waiting:
        name = waiting.pop()
        if name not in found and _ends(own[name], own, found):
            found.add(name)
            waiting += users[name] - found
    return found


def _ends(node: Node, own: dict[str, Node], productive: set[str]) -> bool:
    match node:
        case Reference(name):
            return name not in own or name in productive
        case Concatenation(parts):
            return all(_ends(part, own, productive) for part in parts)
        case Alternation(options):
            return any(_ends(option, own, productive) for option in options)
        case Repetition(part, low):
            return low == 0 or _ends(part, own, productive)
        case Terminal(automaton):
            return not automaton.is_empty
    return True


def _freed(node: Node, own: dict[str, Node], productive: set[str]) -> Node:
    if not _ends(node, own, productive):
        return NOTHING
    match node:
        case Concatenation(parts):
            return Concatenation(tuple(_freed(part, own, productive) for part in parts))
        case Alternation(options):
            kept = (_freed(option, own, productive) for option in options)
            return alternation(*(option for option in kept if option != NOTHING))
        case Repetition(part, low, high):
            part = _freed(part, own, productive)
            return EMPTY if part == NOTHING else Repetition(part, low, high)
    return node


def _references(node: Node) -> set[str]:
    found: set[str] = set()
    waiting = [node]
    while waiting:
        match waiting.pop():
            case Reference(name):
                found.add(name)
            case Concatenation(parts) | Alternation(parts):
                waiting += parts
            case Repetition(part):
                waiting.append(part)
    return found
