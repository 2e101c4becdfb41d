"""The strings of a JSON schema that patterns and lengths describe, as rules of our own.

xgrammar matches a pattern without the escapes of JSON, forgets lengths beside it, and reads some
patterns otherwise than they are meant. So it is given a word that stands for all of these, and in
the grammar that it writes for the schema the rule of that word becomes an automaton's.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from uuid import uuid4

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import MOST_STATES, Automaton, TooLargeError, one_of
from dlm.grammar.regex.pattern import Chars, minus, parse
from dlm.grammar.rules.ast import Either, Repeat, Row, Term

_WORD = f"strings{uuid4().hex}"  # nobody else can spell it; what they are follows, in hexadecimal
_RULE = re.compile(rf'^(\S+) ::= Regex\("{_WORD}([0-9a-f]+)", json_string=true\)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Strings:
    """Strings of `low` to `high` characters that match all `patterns`.

    A pattern with an anchor at one end is open at the other, and one without any is whole.
    """

    patterns: tuple[str, ...]
    low: int = 0
    high: int | None = None

    @property
    def word(self) -> str:
        """Stands for them, as a pattern for xgrammar."""
        return _WORD + json.dumps([self.patterns, self.low, self.high]).encode().hex()

    @property
    def problem(self) -> str | None:
        """What is wrong with a pattern; None if nothing is."""
        try:
            for pattern in self.patterns:
                parse(pattern)
        except InvalidGrammarError as error:
            return f"{error.reason} ({error.where})" if error.where else error.reason
        return None

    def repeated(self, far: int = 32, spell: Callable[[str], str] = str) -> Repeat | None:
        """One character, perhaps over `far` times, as it is spelled; None if they are others."""
        if len(self.patterns) > 1:
            return None
        match parse(self.patterns[0], opened=True):
            case Either((Row((Repeat(Chars(ranges), least, most),)),)):
                bounds = [bound for bound in (most, self.high) if bound is not None]
                most, least = min(bounds, default=None), max(least, self.low)
                plain = minus(ranges, (p for p in range(0x80) if spell(chr(p)) != chr(p)))
                if most is not None and most > max(far, least) and plain:
                    counted = least > far  # by xgrammar, which knows how to with a class alone
                    part = Chars(plain) if counted else Term(one_of(ranges, spell))
                    return Repeat(part, least, most)
        return None

    def automaton(self) -> Automaton:
        """Raises `InvalidGrammarError` if there are none of them, or if they are too intricate."""
        try:
            parts = [Automaton.of(parse(pattern, opened=True)) for pattern in self.patterns]
            if self.low or self.high is not None:
                parts.append(Automaton.of_length(self.low, self.high))
            found = reduce(Automaton.both, parts)
        except TooLargeError as error:
            raise self._error(f"takes more than {MOST_STATES} states") from error
        if not found.final:
            raise self._error("matches nothing of this length")
        return found

    def _error(self, reason: str) -> InvalidGrammarError:
        patterns = " and ".join(f"{pattern!r:.80}" for pattern in self.patterns)
        return InvalidGrammarError("JSON schema", f"the pattern {patterns} {reason}")


def spelled(rules: str, far: int) -> tuple[str, int]:
    """`rules` with those of strings in the place of their words; and how many these were.

    Raises `InvalidGrammarError` for strings that there are none of, or that are too intricate.
    """
    often: dict[str, Repeat] = {}

    def written(word: re.Match[str]) -> str:
        patterns, low, high = json.loads(bytes.fromhex(word[2]))
        strings = Strings(tuple(patterns), low, high)
        if repeated := strings.repeated(far, _escaped):
            often[word[1]] = repeated
            return ""
        return strings.automaton().ebnf(word[1], _escaped)

    rules, count = _RULE.subn(written, rules)
    for name, repeated in often.items():  # its bound is no business of the matcher between quotes
        rules = rules.replace(f'"\\"" {name} "\\""', f'"\\"" {repeated} "\\""')
    return rules, count


def _escaped(character: str) -> str:
    return json.dumps(character, ensure_ascii=False)[1:-1]
