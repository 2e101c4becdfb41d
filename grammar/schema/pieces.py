"""Patterns whose automaton is too large, written in pieces: as nodes, with their counts.

Each is known by its text. Under other conditions on the same string its pieces are narrowed to a
length, or read together with the automaton of the others. Where a `maxLength` leaves it few states,
it has an automaton after all.
"""

from collections.abc import Callable
from contextlib import suppress

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import MOST_STATES, Automaton, TooLargeError
from dlm.grammar.regex.build import determinized, positions
from dlm.grammar.regex.edges import has_assertions
from dlm.grammar.regex.nodes import NOTHING, Node
from dlm.grammar.regex.patterns import parse
from dlm.grammar.regex.products import product
from dlm.grammar.regex.texts import accepts, clipped, lengths_of, within
from dlm.grammar.rules.folding import folded
from dlm.grammar.schema.conditions import Strings, lesser
from dlm.grammar.schema.documents import TooMuchWorkError, Work

_LONGEST_LEAST = 65_536  # characters of the shortest text of a pattern in pieces
_EDGES = 32  # edges of a product that are explored in a unit of work


class Pieces:
    """Patterns in pieces of one schema."""

    def __init__(self, work: Work):
        self._work = work
        self._nodes: dict[str, tuple[Node, Node]] = {}  # as read, and folded
        self.places: dict[str, str] = {}  # a JSON pointer of each
        self._short: dict[tuple[str, int], Automaton | None] = {}  # of texts up to a length

    def __contains__(self, pattern: str) -> bool:
        return pattern in self._nodes

    def read(self, pattern: str) -> None:
        """Learn a pattern, unless it has assertions or only very long texts."""
        with suppress(InvalidGrammarError, TooLargeError, TypeError):
            node = parse(pattern, False)
            if not has_assertions(node) and lengths_of(node)[0] <= _LONGEST_LEAST:
                self._nodes[pattern] = node, folded(node)

    def up_to(self, pattern: str, high: int | None) -> Automaton | None:
        """Return the automaton of a pattern for texts of at most `high` characters, if it is small
        enough. It may accept longer texts."""
        if high is None or high > MOST_STATES:
            return None
        key = pattern, high
        if key not in self._short:
            self._short[key] = None
            node = clipped(self._nodes[pattern][0], high) or NOTHING
            size = positions(node)
            self._work.count(min(size, MOST_STATES) // 4, self.places[pattern])
            if size <= MOST_STATES:
                with suppress(TooLargeError):
                    self._short[key] = determinized(node)
        return self._short[key]

    def least(self, pattern: str) -> int:
        """Return the least number of characters of a text of a pattern."""
        return lengths_of(self._nodes[pattern][0])[0]

    def written(
        self, pattern: str, high: int | None, others: Automaton, add: Callable[[Node], Node]
    ) -> Node | None:
        """Return nodes of texts of a pattern that have at most `high` characters and that `others`
        accepts; None if they take too many. Some long texts may be missing.

        `add` makes a rule of a node and returns the reference to it.
        """
        node, terminals = self._nodes[pattern]
        most = lengths_of(node)[1]
        try:
            if high is not None and lesser(most, high) != most:
                narrowed = within(node, high)
                if narrowed is None:
                    return None
                terminals = folded(narrowed)
            if others == Automaton.ANY:
                return terminals
            where = self.places[pattern]
            return product(
                terminals, others, add, lambda edges: self._work.count(edges // _EDGES, where)
            )
        except TooLargeError:
            return None

    def matches(self, pattern: str, text: str) -> bool:
        """Whether a pattern matches `text`."""
        self._work.count(len(text) // 4, self.places[pattern])
        try:
            return accepts(self._nodes[pattern][0], text)
        except TooLargeError as error:
            raise TooMuchWorkError("JSON schema", str(error), self.places[pattern]) from error


def beside(strings: Strings) -> str:
    """Return the conditions that keep a pattern of `strings` from being written in pieces."""
    words = [word for word, _, _ in sorted(strings.languages)]
    words.remove("pattern")
    words += [f"minLength {strings.low}"] if strings.low else []
    words += [] if strings.high is None else [f"maxLength {strings.high}"]
    words += ["not"] if strings.excluded else []
    return f", and it cannot be written in pieces beside {' and '.join(words)}" if words else ""
