"""The sets of strings and numbers that a schema speaks of, as automata. Knows two keywords.

A pattern without an automaton allows any text here, and is noted in `inexact`.
"""

from fractions import Fraction

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import MOST_STATES, Automaton, TooLargeError
from dlm.grammar.regex.builder import positions
from dlm.grammar.regex.lengths import any_of_length
from dlm.grammar.regex.pattern import bounded, parse
from dlm.grammar.regex.properties import looked_up
from dlm.grammar.schema.backtracking import can_be_judged
from dlm.grammar.schema.facets import Bound, Numbers, Strings, lesser
from dlm.grammar.schema.formats import format_automaton, format_length
from dlm.grammar.schema.numbers import EXACT_CHARACTERS, MOST_CHARACTERS, number_automaton
from dlm.grammar.schema.reader import Source
from dlm.grammar.schema.work import TooMuchWorkError, Work

Texts = tuple[Automaton, int, int | None]  # texts of an automaton, of a least and a most length

_EXCLUDED = 400  # units of work for a number that is left out: it parts an automaton in two
_PROPERTY = 1_000  # units of work for a set of characters that is looked up
_ALL: Texts = (Automaton.ANY, 0, None)
TOO_LARGE = f"its automaton takes more than {MOST_STATES} states"


class Languages:
    """Makes automata, each once. `formats`: whether `format` says anything."""

    def __init__(self, formats: bool, work: Work):
        self.inexact: dict[str, str] = {}
        self._formats, self.work = formats, work
        self._known: dict[tuple[str, str], Texts | None] = {}
        self._unsaid: dict[str, str] = {}  # patterns without an automaton, and why they have none
        self._properties: set[str] = set()  # of Unicode, in patterns
        self._refused: dict[tuple[str, str], Texts | None] = {}  # where it must not match
        self._texts: dict[Strings, Texts | None] = {}
        self._numbers: dict[Numbers, Automaton] = {}

    def asserts(self, word: str, source: Source) -> bool:
        """Whether `pattern` or `format` in `source` is to be enforced, and can be."""
        text = source.node[word]
        if word == "format" and not (self._formats and isinstance(text, str)):
            return False
        return self.known(word, text, f"{source.where}/{word}")

    def known(self, word: str, text: str, where: str) -> bool:
        """Whether it has an automaton. A pattern that has none is noted."""
        if (word, text) not in self._known:
            self._known[word, text] = self._new(word, text, where)
        if word == "pattern" and text in self._unsaid:
            self.inexact[where] = self._unsaid[text]
        return self._known[word, text] is not None

    def _new(self, word: str, text: str, where: str) -> Texts | None:
        """Raises `InvalidGrammarError` for what nobody can read as a pattern."""
        self.work.count(5 + len(text) // 4, where)
        try:
            if word == "pattern":  # most are short; what they repeat may become many states
                new = looked_up(text) - self._properties
                self.work.count(_PROPERTY * len(new), where)
                self._properties |= new
                self.work.count(max(0, positions(parse(text, False)) - len(text)), where)
            return _language(word, text)
        except TooMuchWorkError:
            raise
        except InvalidGrammarError as error:
            reason = f"{error.reason} ({error.where})" if error.where else error.reason
            if not can_be_judged(text):
                raise InvalidGrammarError("JSON schema", reason, where) from error
        except TooLargeError:
            reason = TOO_LARGE
        self._unsaid[text] = f"the pattern {text!r:.60}: {reason}"
        return None

    def of(self, word: str, text: str, wanted: bool = True) -> Automaton:
        """The texts that a pattern or a format accepts, or refuses."""
        automaton, low, high = self._read(word, text, wanted)
        if low or high is not None:
            automaton = automaton.intersection(Automaton.lengths(low, high))
        return automaton if wanted else automaton.complement()

    def _read(self, word: str, text: str, wanted: bool) -> Texts:
        """Raises `TooLargeError`."""
        if wanted or word == "format" or text in self._unsaid:
            return self._known[word, text] or _ALL
        if (word, text) not in self._refused:
            try:
                self._refused[word, text] = bounded(text, False, wide=True)
            except InvalidGrammarError as error:  # it is read in fewer ways when it has to match
                raise TooLargeError(error.reason) from error
        return self._refused[word, text] or _ALL

    def texts(self, strings: Strings) -> Texts | None:
        """None if there are none. Raises `TooLargeError`."""
        if strings not in self._texts:
            automaton, low, high = Automaton.ANY, strings.low, strings.high
            for word, text, wanted in sorted(strings.languages):
                if wanted:
                    one, least, most = self._known[word, text] or _ALL
                    low, high = max(low, least), lesser(high, most)
                else:
                    one = self.of(word, text, False)
                automaton = self.common(automaton, one)
            if strings.excluded:
                automaton = automaton.difference(Automaton.words(sorted(strings.excluded)))
            found = (automaton, low, high) if any_of_length(automaton, low, high) else None
            self._texts[strings] = found
        return self._texts[strings]

    def common(self, one: Automaton, other: Automaton) -> Automaton:
        """What both accept."""
        if Automaton.ANY not in (one, other):
            pairs = len(one.edges) * len(other.edges)
            branching = sum(map(len, one.edges)) // len(one.edges)
            self.work.count(1 + min(pairs, MOST_STATES) * (1 + branching) // 16, "")
        return one.intersection(other)

    def admits(self, strings: Strings, text: str) -> bool:
        if len(text) < strings.low or (strings.high is not None and len(text) > strings.high):
            return False
        for word, name, wanted in strings.languages:
            automaton, low, high = self._read(word, name, wanted)
            fits = low <= len(text) and (high is None or len(text) <= high)
            if (fits and automaton.accepts(text)) != wanted:
                return False
        return text not in strings.excluded

    def numbers(self, numbers: Numbers) -> Automaton:
        """Raises `TooLargeError`."""
        if numbers not in self._numbers:
            found, low = Automaton.NONE, numbers.low
            for value in (*sorted(filter(numbers.admissible, numbers.excluded)), None):
                high = numbers.high if value is None else (value, False)
                steps = max((abs(n.numerator) for n in numbers.multiples), default=0)
                own = 20 if value is None else _EXCLUDED
                self.work.count(own + 4 * min(steps, MOST_STATES), "")
                part = number_automaton(
                    low=_fraction(low),
                    high=_fraction(high),
                    multiples=tuple(sorted(numbers.multiples)),
                    not_multiples=tuple(sorted(numbers.not_multiples)),
                    integer=numbers.integer,
                )
                found = found.union(part)
                low = high
            self._numbers[numbers] = found
        return self._numbers[numbers]


def most_characters(numbers: Numbers) -> int:
    """Of one that a double holds."""
    rounded = (numbers.multiples or numbers.not_multiples) and not numbers.integer
    return EXACT_CHARACTERS if rounded else MOST_CHARACTERS


def whole(texts: Texts | None) -> Automaton:
    """The lengths in the automaton, too."""
    if texts is None:
        return Automaton.NONE
    automaton, low, high = texts
    return (
        automaton.intersection(Automaton.lengths(low, high))
        if texts[1:] != (0, None)
        else automaton
    )


def _language(word: str, text: str) -> Texts | None:
    return bounded(text, False) if word == "pattern" else format_texts(text)


def format_texts(name: str) -> Texts | None:
    """None for formats that say nothing."""
    found = format_automaton(name)
    return found and (found, 0, format_length(name))


def _fraction(bound: Bound | None) -> tuple[Fraction, bool] | None:
    return bound and (Fraction(bound[0]), bound[1])
