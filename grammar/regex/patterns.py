"""Automata of patterns: of regexes, and of free text in which words lead to other nodes.

A regex matches whole texts, or, as in JSON Schema, all texts that contain a match. `dispatch` makes
the nodes of xgrammar's TagDispatch, and of triggered tags in structural tags.
"""

from collections.abc import Sequence

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.limits import RESULTS
from dlm.grammar.regex.automaton import (
    Automaton,
    TooLargeError,
    TransitionTable,
    minimal,
)
from dlm.grammar.regex.build import determinized
from dlm.grammar.regex.characters import EVERY, Ranges, inverted
from dlm.grammar.regex.edges import without_edges
from dlm.grammar.regex.nodes import (
    EMPTY,
    Alternation,
    Characters,
    Concatenation,
    Lookahead,
    Lookbehind,
    Node,
    Repetition,
    Terminal,
    alternation,
    concatenation,
)
from dlm.grammar.regex.reader import END, START, read_regex

_ANYTHING = Repetition(Characters(EVERY))
_FEW = 32  # repetitions that are unrolled; more are counted

BoundedTexts = tuple[Automaton, int, int | None]  # with the minimum and maximum of characters


@RESULTS.remembered
def parse(pattern: str, whole: bool, wide: bool = False) -> Node:
    """Return the nodes of a pattern that matches the `whole` text, or any part of the text.

    It matches what all regex engines match, or, if `wide`, what any of them does. Raises
    `InvalidGrammarError`.
    """
    try:
        node = _opened(_opened(read_regex(pattern, wide), START, not whole), END, not whole)
        return without_edges(node)
    except RecursionError as error:
        raise InvalidGrammarError("pattern", "nested too deeply") from error


@RESULTS.remembered
def automaton_of(pattern: str, whole: bool) -> Automaton:
    """Return the automaton of a pattern. Raises `InvalidGrammarError`, also if it is too large."""
    return _automaton(parse(pattern, whole))


@RESULTS.remembered
def bounded(pattern: str, whole: bool, wide: bool = False) -> BoundedTexts:
    """Return the automaton of a pattern, with one long repetition expressed as bounds of length.

    `^[A-Z][a-z]{0,4999}$` becomes `^[A-Z][a-z]*$` of 1 to 5,000 characters. This is possible if
    all other parts of the pattern have a fixed length. Raises `InvalidGrammarError`.
    """
    return _counted(_parts(parse(pattern, whole, wide)))


def _counted(parts: tuple[Node, ...]) -> BoundedTexts:
    match parts:
        case Lookahead(Concatenation((Repetition(Characters(), low, high) as all_, end)), True), *_:
            if end == END:  # `(?=.{1,255}$)` limits the length of all that follows
                automaton, least, most = _counted(parts[1:])
                bounds = [bound for bound in (high, most) if bound is not None]
                within = automaton.intersection(_automaton(Repetition(all_.part)))
                return within, max(low, least), min(bounds, default=None)
    counted = [
        part
        for part in parts
        if isinstance(part, Repetition) and max(part.low, part.high or 0) > _FEW
    ]
    if len(counted) == 1:
        (repetition,) = counted
        size = _length(repetition.part)
        others = [_length(part) for part in parts if part is not repetition]
        if size and None not in others:
            length_of_others = sum(length for length in others if length)
            low, high = repetition.low, repetition.high
            free = [Repetition(repetition.part) if p is repetition else p for p in parts]
            return (
                _automaton(Concatenation(tuple(free))),
                length_of_others + size * low,
                None if high is None else length_of_others + size * high,
            )
    return _automaton(Concatenation(parts)), 0, None


def _automaton(node: Node) -> Automaton:
    try:
        return determinized(node)
    except TooLargeError as error:
        raise InvalidGrammarError("pattern", f"too large: {error}") from error


def _parts(node: Node) -> tuple[Node, ...]:
    """Return the parts of `node` in order, including those of nested concatenations."""
    if not isinstance(node, Concatenation):
        return (node,)
    return tuple(inner for part in node.parts for inner in _parts(part))


def _length(node: Node) -> int | None:
    """Return the number of characters of all texts of `node`; None if it differs or is unknown."""
    match node:
        case Characters():
            return 1
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
    """Return `node` with any text added at the end that `anchor` stands for.

    Nothing is added if the anchor is there or if not `is_open`. Anchors further inside stay as
    assertions.
    """
    parts, front = _parts(node), anchor is START
    if not parts:
        return _ANYTHING if is_open else EMPTY
    edge, others = (parts[0], parts[1:]) if front else (parts[-1], parts[:-1])
    if edge == anchor:
        return _opened(Concatenation(others), anchor, False)
    if is_open and isinstance(edge, Repetition) and edge.low < 2:  # any text includes more of it
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
    """Whether some alternative of `node` begins, or ends, with the anchor."""
    if isinstance(node, Alternation):
        return any(_is_anchored(option, anchor) for option in node.options)
    parts = _parts(node)
    if len(parts) == 1:
        return parts[0] == anchor
    return bool(parts) and _is_anchored(parts[0 if anchor is START else -1], anchor)


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
        return minimal(TransitionTable(self._classes, rows, final))

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
