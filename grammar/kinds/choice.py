"""What a user may ask a text to be: one of some words."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlm.grammar.errors import InvalidGrammarError, InvalidValueError
from dlm.grammar.kinds.spec import Spec
from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.rules.nodes import Terminal
from dlm.grammar.rules.rules import Rules

if TYPE_CHECKING:
    from dlm.grammar.markers import CallMarkers

_MOST_CHARACTERS = 4_194_304  # of all options together


@dataclass(frozen=True)
class Choice(Spec):
    """One of `options`, word for word."""

    options: Sequence[str]

    kind = "choice"

    def __post_init__(self) -> None:
        listed = isinstance(self.options, Sequence) and not isinstance(self.options, str)
        if not listed or not self.options:
            raise InvalidGrammarError(self.kind, f"a list of options, not {self.options!r:.40}")
        seen: set[str] = set()
        size = 0
        for i, option in enumerate(self.options):
            if not isinstance(option, str) or not option or not _is_text(option):
                raise InvalidGrammarError(self.kind, f"{option!r:.40} is no text", f"option {i}")
            if option in seen:
                raise InvalidGrammarError(
                    self.kind, f"{option!r:.40} is there twice", f"option {i}"
                )
            seen.add(option)
            size += len(option)
        if size > _MOST_CHARACTERS:
            reason = f"{size} characters are too many: it takes up to {_MOST_CHARACTERS}"
            raise InvalidGrammarError(self.kind, reason)

    @property
    def source(self) -> list[str]:
        return list(self.options)

    @property
    def key(self) -> Hashable:
        return self.kind, tuple(self.options)

    def rules(self, markers: "CallMarkers | None") -> Rules:
        rules = Rules()
        rules.nodes[rules.root] = Terminal(Automaton.words(self.options))
        return rules

    def value(self, text: str) -> str:
        if text not in self.options:
            raise InvalidValueError(f"{text!r:.80} is none of the options")
        return text


def _is_text(option: str) -> bool:
    try:
        option.encode()
    except UnicodeEncodeError:
        return False
    return True
