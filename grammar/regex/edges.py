r"""Patterns without assertions about one neighbouring character: `\b`, `\B`, `^`, `$`, `(?=x)`.

`X\bY` becomes `X'Y'`, where `X'` are the texts of `X` that end with a word character, and `Y'`
those of `Y` that begin with another one, or the other way round. Counts stay counts:
`[a-z(]{1,6}\b` becomes `[a-z(]{0,5}[a-z]` and `[a-z(]{0,5}[(]`. Assertions within repetitions, and
those about more than one character, are left to `build.py`.
"""

from dlm.grammar.limits import spend
from dlm.grammar.regex.characters import EVERY, Ranges, inverted, union
from dlm.grammar.regex.nodes import (
    EMPTY,
    NOTHING,
    Alternation,
    Characters,
    Concatenation,
    Literal,
    Lookahead,
    Lookbehind,
    Node,
    Repetition,
    alternation_of,
    concatenation,
)

_MOST_STEPS = 400  # nodes that are split at an assertion


class _UnsupportedError(Exception):
    """A pattern whose assertions cannot be expressed by other nodes."""


def without_edges(node: Node) -> Node:
    """Return the nodes of the same texts without assertions about one character, if possible.

    `node` matches a whole text. If some assertion cannot be expressed, `node` is returned.
    """
    if not has_assertions(node):
        return node
    try:
        return _Splitter().resolved(_flat((node,)), True, True)
    except _UnsupportedError:
        return node


def has_assertions(node: Node) -> bool:
    """Whether a pattern has lookaheads or lookbehinds."""
    match node:
        case Lookahead() | Lookbehind():
            return True
        case Concatenation(parts) | Alternation(parts):
            return any(map(has_assertions, parts))
        case Repetition(part):
            return has_assertions(part)
    return False


def _flat(parts: tuple[Node, ...]) -> list[Node]:
    """Return `parts` in order, with those of nested concatenations in their place."""
    flat: list[Node] = []
    for part in parts:
        flat += _flat(part.parts) if isinstance(part, Concatenation) else (part,)
    return flat


class _Splitter:
    """Reader of one pattern, whose steps are bounded."""

    def __init__(self):
        self._steps = 0

    def resolved(self, parts: list[Node], at_start: bool, at_end: bool) -> Node:
        """Return the concatenation of `parts` without assertions.

        `at_start` and `at_end`: the text begins, or ends, with them; else the first, or the
        last, part is never empty.
        """
        while True:
            at = next((i for i, part in enumerate(parts) if has_assertions(part)), None)
            if at is None:
                return concatenation(*parts)
            self._count()
            before, part, after = parts[:at], parts[at], parts[at + 1 :]
            match part:
                case Lookbehind(Characters(ranges), positive):
                    kept = ranges if positive else inverted(ranges)
                    parts = [*self._ending(before, kept, at_start and not positive), *after]
                case Lookahead(Characters(ranges), positive):
                    kept = ranges if positive else inverted(ranges)
                    parts = [*before, *self._beginning(after, kept, at_end and not positive)]
                case Alternation(options):
                    start = next((i for i in reversed(range(at)) if not _passable(parts[i])), 0)
                    ends = (i for i in range(at + 1, len(parts)) if not _passable(parts[i]))
                    end = next(ends, len(parts) - 1)
                    inner = [
                        self.resolved(
                            [*parts[start:at], *_flat((option,)), *parts[at + 1 : end + 1]],
                            at_start and start == 0,
                            at_end and end == len(parts) - 1,
                        )
                        for option in options
                    ]
                    parts = [*parts[:start], *_flat((alternation_of(inner),)), *parts[end + 1 :]]
                case _:
                    raise _UnsupportedError

    def _count(self) -> None:
        self._steps += 1
        spend(1)
        if self._steps > _MOST_STEPS:
            raise _UnsupportedError

    def _ending(self, parts: list[Node], kept: Ranges, empty: bool) -> list[Node]:
        """Return `parts` that end with a character of `kept`, or, if `empty`, are empty."""
        start = next((i for i in reversed(range(len(parts))) if not _passable(parts[i])), 0)
        options = [self._edge(Concatenation(tuple(parts[start:])), kept, -1)]
        if empty and start == 0 and all(map(_passable, parts)):
            options.append(EMPTY)
        return [*parts[:start], *_flat((alternation_of(options),))]

    def _beginning(self, parts: list[Node], kept: Ranges, empty: bool) -> list[Node]:
        """Return `parts` that begin with a character of `kept`, or, if `empty`, are empty."""
        end = next((i for i, part in enumerate(parts) if not _passable(part)), len(parts) - 1)
        node = Concatenation(tuple(parts[: end + 1]))
        options = [self._edge(node, kept, 0)]
        if empty and (nothing := _emptied(node)) is not None:
            options.append(nothing)
        return [*_flat((alternation_of(options),)), *parts[end + 1 :]]

    def _edge(self, node: Node, kept: Ranges, end: int) -> Node:
        """Return the texts of `node` whose first (`end` 0) or last (-1) character is in `kept`."""
        self._count()
        match node:
            case Characters(ranges):
                both = _common(ranges, kept)
                return Characters(both) if both else NOTHING
            case Literal(text):
                fits = text and any(low <= ord(text[end]) <= high for low, high in kept)
                return node if fits else NOTHING
            case Alternation(options):
                return alternation_of([self._edge(option, kept, end) for option in options])
            case Concatenation(parts):
                choices: list[Node] = []
                passed: list[Node] = []
                for i in range(len(parts)) if end == 0 else reversed(range(len(parts))):
                    edge = self._edge(parts[i], kept, end)
                    if edge != NOTHING:
                        sides = [*passed, edge, *parts[i + 1 :]]
                        if end:
                            sides = [*parts[:i], edge, *reversed(passed)]
                        choices.append(concatenation(*_flat(tuple(sides))))
                    nothing = _emptied(parts[i])
                    if nothing is None:
                        break
                    passed.append(nothing)
                return alternation_of(choices)
            case Repetition(part, low, high) if high != 0 and not has_assertions(part):
                edge = self._edge(part, kept, end)
                if edge == NOTHING:
                    return NOTHING
                low = 0 if _passable(part) else max(0, low - 1)
                others = Repetition(part, low, None if high is None else high - 1)
                sides = (edge, others) if end == 0 else (others, edge)
                return edge if others.high == 0 else concatenation(*sides)
            case Repetition(_, _, 0) | Lookahead() | Lookbehind():
                return NOTHING
        raise _UnsupportedError


def _passable(node: Node) -> bool:
    """Whether `node` may match the empty text."""
    return _emptied(node) is not None


def _emptied(node: Node) -> Node | None:
    """Return the assertions that hold if `node` matches the empty text; None if it never does."""
    match node:
        case Lookahead() | Lookbehind():
            return node
        case Literal(text):
            return None if text else EMPTY
        case Characters():
            return None
        case Concatenation(parts):
            emptied = [_emptied(part) for part in parts]
            if None in emptied:
                return None
            return concatenation(*(part for part in emptied if part not in (None, EMPTY)))
        case Alternation(options):
            emptied = [empty for option in options if (empty := _emptied(option)) is not None]
            return EMPTY if EMPTY in emptied else alternation_of(emptied) if emptied else None
        case Repetition(part, low):
            return EMPTY if low == 0 else _emptied(part)
    raise _UnsupportedError


def _common(ranges: Ranges, other: Ranges) -> Ranges:
    """Return the characters that are in both."""
    if other == EVERY:
        return ranges
    return inverted(union((*inverted(ranges), *inverted(other))))
