"""Texts of patterns that have no automaton: whether one matches, and how long they are or may be.

Knows no assertions.
"""

from sys import maxsize

from dlm.grammar.limits import spend
from dlm.grammar.regex.automaton import TooLargeError
from dlm.grammar.regex.nodes import (
    EMPTY,
    Alternation,
    Characters,
    Concatenation,
    Literal,
    Node,
    Repetition,
)

_MOST_STEPS = 500_000  # places in a text that one match examines: about half a second


def accepts(node: Node, text: str) -> bool:
    """Whether a pattern without assertions matches the whole `text`. Raises `TooLargeError`."""
    return len(text) in _Match(text).ends(node, {0})


class _Match:
    """One text, in which each node leads from some places to others."""

    def __init__(self, text: str):
        self._text, self._steps = text, 0

    def ends(self, node: Node, starts: set[int]) -> set[int]:
        """Return the places where texts of `node` end that begin at one of `starts`."""
        self._steps += 1 + len(starts)
        spend(1 + len(starts) // 8)
        if self._steps > _MOST_STEPS:
            raise TooLargeError(f"a match of it takes over {_MOST_STEPS:,} steps")
        text = self._text
        match node:
            case Literal(word):
                return {at + len(word) for at in starts if text.startswith(word, at)}
            case Characters(ranges):
                inner = ((at, ord(text[at])) for at in starts if at < len(text))
                return {at + 1 for at, c in inner if any(low <= c <= high for low, high in ranges)}
            case Concatenation(parts):
                for part in parts:
                    starts = self.ends(part, starts) if starts else starts
                return starts
            case Alternation(options):
                return set().union(*(self.ends(option, starts) for option in options))
            case Repetition(part, low, high):
                return self._repeated(part, low, high, starts)
        raise TypeError(f"{type(node).__name__} is no part of a pattern without assertions")

    def _repeated(self, part: Node, low: int, high: int | None, starts: set[int]) -> set[int]:
        ends, reached, number = set[int](), starts, 0
        while reached and (high is None or number <= high):
            if number >= low:
                if reached <= ends:  # reached by fewer repetitions: more lead to no new place
                    break
                ends |= reached
            after = self.ends(part, reached)
            if after == reached and number < low:  # an empty text may be repeated at will
                number = low - 1
            reached, number = after, number + 1
        return ends


def lengths_of(node: Node) -> tuple[int, int | None]:
    """Return the least and the greatest number of characters of the texts of a pattern.

    The greatest is None if there is none, or if the pattern has parts that are not measured.
    """
    match node:
        case Characters():
            return 1, 1
        case Literal(text):
            return len(text), len(text)
        case Concatenation(parts):
            spans = [lengths_of(part) for part in parts]
            tops = [high for _, high in spans if high is not None]
            whole = len(tops) == len(spans)
            return sum(low for low, _ in spans), sum(tops) if whole else None
        case Alternation(options) if options:
            spans = [lengths_of(option) for option in options]
            tops = [high for _, high in spans if high is not None]
            return min(low for low, _ in spans), max(tops) if len(tops) == len(spans) else None
        case Repetition(part, low, high):
            least, most = lengths_of(part)
            return least * low, None if high is None or most is None else most * high
    return 0, None


def clipped(node: Node, high: int) -> Node | None:
    """Return a pattern with the same texts of at most `high` characters, whose counts are no larger
    than these need; None if there are none. Its other texts are some of those of `node`."""
    least = lengths_of(node)[0]
    if least > high:
        return None
    match node:
        case Concatenation(parts):
            clips = [clipped(part, high - least + lengths_of(part)[0]) for part in parts]
            return Concatenation(tuple(part for part in clips if part is not None))
        case Alternation(options):
            kept = (clipped(option, high) for option in options)
            return Alternation(tuple(option for option in kept if option is not None))
        case Repetition(part, low, most):
            size = lengths_of(part)[0]
            inner = clipped(part, high - size * max(0, low - 1))
            if inner is None:
                return EMPTY
            if size:
                most = high // size if most is None else min(most, high // size)
            return Repetition(inner, low, most)
    return node


def within(node: Node, high: int) -> Node | None:
    """Return texts of a pattern that have at most `high` characters, as a pattern of its own.

    Counts of its repetitions are narrowed until no text is longer: those of the longest most, and
    as little as that takes. So a long text may be missing. None if that is not enough.
    """
    if isinstance(node, Alternation):
        options = [within(option, high) for option in node.options]
        kept = tuple(option for option in options if option is not None)
        return Alternation(kept) if kept else None
    parts = list(node.parts) if isinstance(node, Concatenation) else [node]
    spans = [lengths_of(part) for part in parts]
    spare = high - sum(least for least, _ in spans)  # characters beyond the least
    growth = [maxsize if most is None else most - least for least, most in spans]
    for number, i in enumerate(sorted(range(len(parts)), key=growth.__getitem__)):
        share = max(0, spare) // (len(parts) - number)  # what a part leaves, those after it get
        extra, least = growth[i], spans[i][0]
        if extra > share:
            narrowed = _narrowed(parts[i], least + share)
            if narrowed is None:
                return None
            parts[i], extra = narrowed, (lengths_of(narrowed)[1] or 0) - least
        spare -= extra
    return Concatenation(tuple(parts)) if spare >= 0 else None


def _narrowed(node: Node, high: int) -> Node | None:
    """Return texts of a part of a pattern that have at most `high` characters, or None.

    Rounds of a repetition that differ in length are many short ones, fewer longer ones, and so on.
    """
    if not isinstance(node, Repetition):
        return within(node, high) if isinstance(node, Alternation | Concatenation) else None
    shortest, longest = lengths_of(node.part)
    size, most = max(1, shortest), high // max(1, node.low)
    most = most if longest is None else min(most, longest)
    options: list[Node] = []
    while size <= most:
        count = high // size
        inner = node.part if longest == size else within(node.part, size)
        if inner is not None:
            top = count if node.high is None else min(node.high, count)
            options.append(Repetition(inner, node.low, top))
        size = most if size < most < 2 * size else 2 * size
    if not options:
        return EMPTY if not node.low else None
    return Alternation(tuple(options)) if len(options) > 1 else options[0]
