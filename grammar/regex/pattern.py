"""What patterns match: whole texts, or, as JSON Schema means it, texts that they occur in."""

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import Automaton, TooLargeError
from dlm.grammar.regex.ranges import EVERY
from dlm.grammar.regex.reader import END, START, read
from dlm.grammar.rules.nodes import (
    EMPTY,
    Alternation,
    Characters,
    Concatenation,
    Literal,
    Lookahead,
    Lookbehind,
    Node,
    Repetition,
)
from dlm.grammar.shared_cache import RESULTS

_ANYTHING = Repetition(Characters(EVERY))
_FEW = 32  # of counted characters: more are counted, not unrolled

Bounded = tuple[Automaton, int, int | None]  # texts of so many characters that it accepts


@RESULTS.remembered
def parse(pattern: str, whole: bool, wide: bool = False) -> Node:
    """Matches the `whole` text, or all texts in which the pattern matches a part.

    For all readers of patterns, or, `wide`, for any of them. Raises `InvalidGrammarError`.
    """
    try:
        return _opened(_opened(read(pattern, wide), START, not whole), END, not whole)
    except RecursionError as error:
        raise InvalidGrammarError("pattern", "nested too deeply") from error


@RESULTS.remembered
def automaton_of(pattern: str, whole: bool) -> Automaton:
    """Raises `InvalidGrammarError`, also for what is too large."""
    return _automaton(parse(pattern, whole))


@RESULTS.remembered
def bounded(pattern: str, whole: bool, wide: bool = False) -> Bounded:
    """The automaton without a long count that comes down to the number of characters, and that.

    Such a count is the only one in the pattern, or the others do not change the number:
    `^[A-Z][a-z]{0,4999}$` is `^[A-Z][a-z]*$` of 1 to 5,000 characters.
    """
    return _counted(_parts(parse(pattern, whole, wide)))


def _counted(parts: tuple[Node, ...]) -> Bounded:
    match parts:
        case Lookahead(Concatenation((Repetition(Characters(), low, high) as all_, end)), True), *_:
            if end == END:  # `(?=.{1,255}$)`: about all that follows, wherever it is asked
                automaton, least, most = _counted(parts[1:])
                within = automaton.intersection(_automaton(Repetition(all_.part)))
                return within, max(low, least), _least(high, most)
    counted = [part for part in parts if isinstance(part, Repetition) and _is_long(part)]
    if len(counted) == 1:
        (repetition,) = counted
        size = _length(repetition.part)
        others = [_length(part) for part in parts if part is not repetition]
        if size and None not in others:
            fixed = sum(length for length in others if length)
            low, high = repetition.low, repetition.high
            free = [Repetition(repetition.part) if p is repetition else p for p in parts]
            return (
                _automaton(Concatenation(tuple(free))),
                fixed + size * low,
                None if high is None else fixed + size * high,
            )
    return _automaton(Concatenation(parts)), 0, None


def _least(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)


def _automaton(node: Node) -> Automaton:
    try:
        return Automaton.of(node)
    except TooLargeError as error:
        raise InvalidGrammarError("pattern", f"too large: {error}") from error


def _parts(node: Node) -> tuple[Node, ...]:
    """One behind the other, also those of groups."""
    if not isinstance(node, Concatenation):
        return (node,)
    return tuple(inner for part in node.parts for inner in _parts(part))


def _is_long(repetition: Repetition) -> bool:
    return max(repetition.low, repetition.high or 0) > _FEW


def _length(node: Node) -> int | None:
    """How many characters all its texts have, if they have the same number."""
    match node:
        case Characters():
            return 1
        case Literal(text):
            return len(text)
        case Lookahead() | Lookbehind():
            return 0
        case Concatenation(parts):
            lengths = [_length(part) for part in parts]
            return sum(n for n in lengths if n) if None not in lengths else None
        case Alternation(options):
            lengths = {_length(option) for option in options}
            return lengths.pop() if len(lengths) == 1 else None
        case Repetition(part, low, high) if low == high:
            length = _length(part)
            return length if length is None else length * low
    return None


def _opened(node: Node, anchor: Node, is_open: bool) -> Node:
    """With any text at the end that `anchor` is for, unless the anchor is there or not `is_open`.

    Anchors further inside stay: the automaton sees to them.
    """
    parts, front = _parts(node), anchor is START
    if not parts:
        return _ANYTHING if is_open else EMPTY
    edge, others = (parts[0], parts[1:]) if front else (parts[-1], parts[:-1])
    if edge == anchor:
        return _opened(Concatenation(others), anchor, False)
    if is_open and isinstance(edge, Repetition) and edge.low < 2:  # any text takes its place
        once = (edge.part,) if edge.low else ()
        return _opened(Concatenation((*once, *others) if front else (*others, *once)), anchor, True)
    ends: tuple[Node, ...] = (edge,)
    if isinstance(edge, Alternation) and _is_anchored(edge, anchor):
        ends = (Alternation(tuple(_opened(o, anchor, is_open) for o in edge.options)),)
    elif is_open:
        if isinstance(edge, Repetition):
            edge = Repetition(edge.part, edge.low, edge.low)
        ends = (_ANYTHING, edge) if front else (edge, _ANYTHING)
    return Concatenation((*ends, *others) if front else (*others, *ends))


def _is_anchored(node: Node, anchor: Node) -> bool:
    """Some way through it begins, or ends, with the anchor."""
    if isinstance(node, Alternation):
        return any(_is_anchored(option, anchor) for option in node.options)
    parts = _parts(node)
    if len(parts) == 1:
        return parts[0] == anchor
    return bool(parts) and _is_anchored(parts[0 if anchor is START else -1], anchor)
