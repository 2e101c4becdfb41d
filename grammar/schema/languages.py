"""Automata for the strings and numbers that a schema allows: `pattern`, `format` and bounds.

A pattern whose automaton is too large is written in pieces, if nothing else is asked of the text.
Other patterns without an automaton allow any text, and are recorded in `Languages.inexact`.
"""

from collections.abc import Callable

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import MOST_STATES, Automaton, TooLargeError
from dlm.grammar.regex.build import MOST_POSITIONS, positions
from dlm.grammar.regex.lengths import any_of_length
from dlm.grammar.regex.nodes import NOTHING, Node
from dlm.grammar.regex.patterns import (
    BoundedTexts,
    bounded,
    parse,
)
from dlm.grammar.regex.unicode_sets import looked_up
from dlm.grammar.schema.backtracking import can_be_judged
from dlm.grammar.schema.conditions import Numbers, Strings, lesser
from dlm.grammar.schema.documents import Source, TooMuchWorkError, Work
from dlm.grammar.schema.formats import format_texts
from dlm.grammar.schema.numbers import EXACT_CHARACTERS, MOST_CHARACTERS, number_automaton
from dlm.grammar.schema.pieces import Pieces, beside

_EXCLUDED = 400  # units of work for an excluded number, which splits an automaton in two
_PROPERTY = 1_000  # units of work for looking up a Unicode property
_ALL: BoundedTexts = (Automaton.ANY, 0, None)
TOO_LARGE = f"its automaton takes more than {MOST_STATES} states"


class Languages:
    """Cache of automata for one schema. `formats`: whether `format` is asserted."""

    def __init__(self, formats: bool, work: Work):
        self.inexact: dict[str, str] = {}
        self._formats, self.work = formats, work
        self._bounded_texts: dict[tuple[str, str], BoundedTexts | None] = {}
        self._unreadable: dict[str, str] = {}  # patterns without an automaton, and the reason
        self._pieces = Pieces(work)
        self._properties: set[str] = set()  # Unicode properties in patterns so far
        self._refused: dict[tuple[str, str], BoundedTexts | None] = {}  # patterns to be negated
        self._texts: dict[Strings, BoundedTexts | None] = {}
        self._numbers: dict[Numbers, Automaton] = {}

    def asserts(self, word: str, source: Source, positive: bool = True) -> bool:
        """Whether the keyword `word`, `pattern` or `format`, is asserted and can be enforced.

        If it is `positive`, a pattern without an automaton can be if it is one of several pieces.
        """
        text, where = source.node[word], f"{source.where}/{word}"
        if word == "format" and not (self._formats and isinstance(text, str)):
            return False
        if word == "pattern" and positive and self._read_once(word, text, where) is None:
            self._pieces.places.setdefault(text, where)
            if text in self._pieces:
                return True
        return self.has_automaton(word, text, where)

    def has_automaton(self, word: str, text: str, where: str) -> bool:
        """Whether `text` has an automaton. A pattern without one is recorded in `inexact`."""
        texts = self._read_once(word, text, where)
        if word == "pattern" and text in self._unreadable:
            self.inexact[where] = self._unreadable[text]
        return texts is not None

    def _read_once(self, word: str, text: str, where: str) -> BoundedTexts | None:
        if (word, text) not in self._bounded_texts:
            self._bounded_texts[word, text] = self._new(word, text, where)
        return self._bounded_texts[word, text]

    def _new(self, word: str, text: str, where: str) -> BoundedTexts | None:
        """Return the texts; None if they have no automaton. Raises `InvalidGrammarError`."""
        self.work.count(5 + len(text) // 4, where)
        try:
            if word == "pattern":  # even a short pattern may have repetitions with many states
                new = looked_up(text) - self._properties
                self.work.count(_PROPERTY * len(new), where)
                self._properties |= new
                size = min(positions(parse(text, False)), MOST_POSITIONS)
                self.work.count(max(0, size - len(text)), where)
            return bounded(text, False) if word == "pattern" else format_texts(text)
        except TooMuchWorkError:
            raise
        except InvalidGrammarError as error:
            reason = f"{error.reason} ({error.where})" if error.where else error.reason
            if not can_be_judged(text):
                raise InvalidGrammarError("JSON schema", reason, where) from error
        except TooLargeError:
            reason = TOO_LARGE
        self._unreadable[text] = f"the pattern {text!r:.60}: {reason}"
        self._pieces.read(text)
        return None

    def pieces(self, strings: Strings, add: Callable[[Node], Node]) -> Node | None:
        """Return nodes of texts that fit `strings`, if one of its patterns has no automaton, and no
        other; else None. Under a `maxLength`, some long texts may be missing.

        `add` makes a rule of a node and returns the reference to it.
        """
        mine = [part for part in strings.languages if part[1] in self._pieces]
        if len(mine) != 1 or self._pieces.up_to(mine[0][1], strings.high):
            return None
        pattern = mine[0][1]
        low = strings.low if strings.low > self._pieces.least(pattern) else 0
        others = strings._replace(languages=strings.languages - {*mine}, low=low, high=None)
        try:
            texts = self.texts(others)
            if texts is None:
                return NOTHING
            automaton, low, high = texts
            automaton = with_bounds((automaton, low, None))
        except TooLargeError:
            return None
        return self._pieces.written(pattern, lesser(strings.high, high), automaton, add)

    def possible(self, strings: Strings) -> bool:
        """Whether some text may fit `strings`; if False, none does. Raises `TooLargeError`."""
        if any(text in self._pieces for _, text, _ in strings.languages):
            return strings.high is None or strings.low <= strings.high
        return self.texts(strings) is not None

    def of(self, word: str, text: str, positive: bool = True) -> Automaton:
        """Return the texts that a pattern or a format accepts, or, if not `positive`, refuses."""
        automaton = with_bounds(self._read(word, text, positive))
        return automaton if positive else automaton.complement()

    def _read(self, word: str, text: str, positive: bool) -> BoundedTexts:
        """Return the texts that all regex engines match, or, if not `positive`, that any does.

        Raises `TooLargeError`.
        """
        if positive or word == "format" or text in self._unreadable:
            return self._bounded_texts[word, text] or _ALL
        if (word, text) not in self._refused:
            try:
                self._refused[word, text] = bounded(text, False, wide=True)
            except InvalidGrammarError as error:  # the wide automaton supports fewer patterns
                raise TooLargeError(error.reason) from error
        return self._refused[word, text] or _ALL

    def texts(self, strings: Strings) -> BoundedTexts | None:
        """Return the texts that fit `strings`; None if no text does. Raises `TooLargeError`.

        A pattern without an automaton is not among the conditions, and is recorded in `inexact`.
        """
        if strings not in self._texts:
            automaton, low, high = Automaton.ANY, strings.low, strings.high
            # Patterns in pieces are last: others may limit the length.
            in_pieces = {part for part in strings.languages if part[1] in self._pieces}
            for word, text, positive in sorted(strings.languages - in_pieces) + sorted(in_pieces):
                if word == "pattern" and text in self._pieces:
                    language = self._pieces.up_to(text, high)
                    if language is None:
                        reason = f"{self._unreadable[text]}{beside(strings)}"
                        self.inexact[self._pieces.places[text]] = reason
                        continue
                elif positive:
                    language, least, most = self._bounded_texts[word, text] or _ALL
                    low, high = max(low, least), lesser(high, most)
                else:
                    language = self.of(word, text, False)
                automaton = self.common(automaton, language)
            if strings.excluded:
                automaton = automaton.difference(Automaton.words(sorted(strings.excluded)))
            texts = (automaton, low, high) if any_of_length(automaton, low, high) else None
            self._texts[strings] = texts
        return self._texts[strings]

    def common(self, automaton: Automaton, other: Automaton) -> Automaton:
        """Return the intersection of two automata, and count the work."""
        if Automaton.ANY not in (automaton, other):
            pairs = len(automaton.edges) * len(other.edges)
            branching = sum(map(len, automaton.edges)) // len(automaton.edges)
            self.work.count(1 + min(pairs, MOST_STATES) * (1 + branching) // 16, "")
        return automaton.intersection(other)

    def admits(self, strings: Strings, text: str) -> bool:
        """Whether `text` fits `strings`."""
        if len(text) < strings.low or (strings.high is not None and len(text) > strings.high):
            return False
        for word, name, positive in strings.languages:
            if word == "pattern" and name in self._pieces:
                if not self._pieces.matches(name, text):
                    return False
                continue
            automaton, low, high = self._read(word, name, positive)
            fits = low <= len(text) and (high is None or len(text) <= high)
            if (fits and automaton.accepts(text)) != positive:
                return False
        return text not in strings.excluded

    def numbers(self, numbers: Numbers) -> Automaton:
        """Return the automaton of the numbers that fit `numbers`. Raises `TooLargeError`."""
        if numbers not in self._numbers:
            joined, low = Automaton.NONE, numbers.low
            for value in (*sorted(filter(numbers.admissible, numbers.excluded)), None):
                high = numbers.high if value is None else (value, False)
                steps = max((abs(n.numerator) for n in numbers.multiples), default=0)
                own = 20 if value is None else _EXCLUDED
                self.work.count(own + 4 * min(steps, MOST_STATES), "")
                part = number_automaton(
                    low=low,
                    high=high,
                    multiples=tuple(sorted(numbers.multiples)),
                    not_multiples=tuple(sorted(numbers.not_multiples)),
                    integer=numbers.integer,
                )
                joined = joined.union(part)
                low = high
            self._numbers[numbers] = joined
        return self._numbers[numbers]


def most_characters(numbers: Numbers) -> int:
    """Return the maximum number of characters of a number, so that a double represents it."""
    rounded = (numbers.multiples or numbers.not_multiples) and not numbers.integer
    return EXACT_CHARACTERS if rounded else MOST_CHARACTERS


def with_bounds(texts: BoundedTexts | None) -> Automaton:
    """Return one automaton that also enforces the minimum and maximum length of `texts`."""
    if texts is None:
        return Automaton.NONE
    automaton, low, high = texts
    if (low, high) == (0, None):
        return automaton
    return automaton.intersection(Automaton.lengths(low, high))
