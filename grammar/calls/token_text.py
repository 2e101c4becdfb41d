"""Text of the tokens of an answer, in which control tokens are characters that no text holds.

So patterns find the markers of calls in it. Bytes that are not UTF-8 are such characters too.
"""

import codecs
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from dlm.grammar.errors import InvalidValueError
from dlm.grammar.vocabulary.pieces import TokenPieces

OPEN_MARK, ARGUMENTS_MARK = "\ud800", "\ud801"  # in the place of a form's control tokens
_OTHER_MARK = "\ud802"  # in the place of all others
SPACE = re.compile(r"[ \t\r\n]*")
_MARKS = re.compile("[\ud800-\ud802]")
SURROGATES = re.compile("[\ud800-\udfff]")


class TokenText:
    """Text of an answer as it grows."""

    def __init__(self, vocabulary: TokenPieces | None, marks: Mapping[int, str]):
        """`marks` are the characters for control tokens with a meaning. Without a vocabulary, text
        is added as it is."""
        self.text = ""
        self._vocabulary, self._marks = vocabulary, marks
        self._ends: list[int] = []  # for each token, the number of characters up to its end
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def add(self, tokens: Sequence[int]) -> None:
        """Add the text of the next tokens, as far as its characters are whole."""
        vocabulary, texts, size = self._vocabulary, [self.text], len(self.text)
        if vocabulary is None:
            raise TypeError("text without a vocabulary has no tokens")
        for token in tokens:
            control = token in vocabulary.control
            text = self._decoder.decode(b"" if control else vocabulary.pieces[token], control)
            texts.append(text + self._marks.get(token, _OTHER_MARK) if control else text)
            size += len(texts[-1])
            self._ends.append(size)
        self.text = "".join(texts)

    def end(self) -> None:
        """Add what is left of a character that lacks bytes."""
        self.text += self._decoder.decode(b"", True)

    def tokens(self, begin: int, end: int) -> tuple[int, int] | None:
        """Return the indices of the first and last token of some characters; None if the text has
        no tokens."""
        if not self._ends:
            return None
        return bisect_right(self._ends, begin), bisect_right(self._ends, end - 1)


def after_space(text: str, at: int) -> int:
    """Return the index of the first character from `at` on that is no white space of JSON."""
    space = SPACE.match(text, at)
    return space.end() if space else at


def malformed(at: int, reason: str) -> InvalidValueError:
    """Return the error for a call that is wrong at a character of the answer."""
    return InvalidValueError(f"a tool call is malformed at character {at}: {reason}")


def shown(text: str) -> str:
    """Return text without the marks of control tokens; U+FFFD replaces invalid UTF-8."""
    return SURROGATES.sub("\ufffd", _MARKS.sub("", text))
