"""Free text in which some words lead to rules: what TagDispatch is in xgrammar's EBNF, and
triggered tags in structural tags."""

from collections.abc import Sequence

from dlm.grammar.regex.automaton import Automaton, TooLargeError
from dlm.grammar.regex.ranges import Ranges, inverted
from dlm.grammar.regex.table import Table, minimal
from dlm.grammar.rules.nodes import (
    Concatenation,
    Node,
    Repetition,
    Terminal,
    alternation,
    concatenation,
)

_MOST_CHARACTERS = 4096  # of all words together
_MOST_APART = 16  # words that overlap, each with an automaton of its own


def dispatch(branches: Sequence[tuple[str, Node]], excludes: Sequence[str], loop: bool) -> Node:
    """Free text up to the first word of `branches`, then its node; with `loop`, again and again.

    Free text holds no word of either kind. Of words that end together the longest one counts. The
    text may end wherever it is free. Raises `TooLargeError`.
    """
    options: dict[str, list[Node]] = {}
    for word, node in branches:
        options.setdefault(word, []).append(node)
    table = _Words(tuple(options), tuple(excludes))
    free = Terminal(table.free())
    if not options:
        return free
    if table.overlap():
        if len(options) > _MOST_APART:
            raise TooLargeError(f"over {_MOST_APART} words overlap each other")
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
    """Of all texts in which none of the words is. Raises `TooLargeError`."""
    return _Words((), tuple(words)).free()


class _Words:
    """All words as one automaton, whose states are what a text ends with (Aho and Corasick)."""

    def __init__(self, words: tuple[str, ...], excludes: tuple[str, ...]):
        self._words, self._excludes = words, tuple(word for word in excludes if word)
        if sum(map(len, (*words, *self._excludes))) > _MOST_CHARACTERS:
            raise TooLargeError(f"its words have over {_MOST_CHARACTERS:,} characters")
        letters = sorted(set("".join((*words, *self._excludes))))
        self._classes: list[Ranges] = [((ord(c), ord(c)),) for c in letters]
        self._classes.append(inverted(r for ranges in self._classes for r in ranges))
        self._ends: dict[int, str] = {}  # of each state, the longest word that ends there
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
        for state, behind in waiting:  # it grows meanwhile; what `behind` stands for is a suffix
            if behind in self._excluded:
                self._excluded.add(state)
            if behind in self._ends:
                self._ends.setdefault(state, self._ends[behind])
            rows[state] = rows[behind] | children[state]
            waiting += [(to, rows[behind][letter]) for letter, to in children[state].items()]
        return rows

    def free(self) -> Automaton:
        return self._automaton({*range(len(self._rows))} - self._ends.keys() - self._excluded)

    def up_to(self, word: str) -> Automaton:
        """The texts that end with this word, and have no other."""
        ends = {state for state, other in self._ends.items() if other == word} - self._excluded
        return self._automaton(ends)

    def _automaton(self, final: set[int]) -> Automaton:
        stopped = self._ends.keys() | self._excluded
        rows = [{} if state in stopped else row for state, row in enumerate(self._rows)]
        return Automaton(*minimal(Table(self._classes, rows, final)))

    def overlap(self) -> bool:
        """A word may end within another that follows free text."""
        return any(
            (other in word and not itself)
            or any(other.endswith(word[:n]) for n in range(1, len(word) + (not itself)))
            for word in self._words
            for other, itself in (
                *((other, other == word) for other in self._words),
                *((other, False) for other in self._excludes),
            )
        )
