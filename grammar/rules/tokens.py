"""The tokens of a grammar's text, one behind the other. Knows no notation: it is told the forms."""

import re
from collections.abc import Mapping
from typing import NoReturn, cast

from dlm.grammar.rules.source import Source


class Tokens:
    """The token at hand: its match, its kind (the name of its group) and where it begins.

    `mark` is its text where its kind is that. At the end of the text, the kind is "end".
    """

    def __init__(
        self,
        source: Source,
        forms: "re.Pattern[str]",
        between: "re.Pattern[str]",
        unfinished: Mapping[str, str],
    ):
        """`between` matches what separates tokens; `unfinished` says what is wrong with a
        character that begins none."""
        self.source = source
        self._forms, self._between, self._unfinished = forms, between, unfinished
        self.token = cast("re.Match[str]", re.match("", ""))
        self.move(0)

    def move(self, at: int) -> None:
        """To the first token from there on."""
        self.at = self.behind(at)
        found = self._forms.match(self.source.text, self.at)
        if found is None and self.at < len(self.source.text):
            mark = self.source.text[self.at]
            self.fail(self._unfinished.get(mark, f"{mark!r} has no meaning here"))
        self.kind = (found and found.lastgroup) or "end"
        self.token = found or self.token
        self.mark = found["mark"] if found else None

    def behind(self, at: int) -> int:
        """Where what separates tokens ends that may begin there."""
        between = self._between.match(self.source.text, at)
        return between.end() if between else at

    def next(self) -> None:
        self.move(self.token.end())

    def fail(self, reason: str) -> NoReturn:
        raise self.source.error(reason, self.at)

    def first_on_its_line(self) -> bool:
        start = self.source.text.rfind("\n", 0, self.at) + 1
        return not self.source.text[start : self.at].strip()
