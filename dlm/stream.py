"""Stream of a request's text: whole characters, each emitted once."""

import codecs
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlm.grammar import Reasoning, Vocabulary  # with torch, which readers of items do without


@dataclass(frozen=True, slots=True)
class NewPart:
    """Tokens and whole characters by which a text has grown."""

    tokens: list[int]
    answer: list[int]  # tokens of the answer, which may come later than in `tokens`
    text: str  # of the answer
    reasoning: str


@dataclass(slots=True, kw_only=True)
class Stream:
    """Conversion of final tokens to text, with reasoning and answer apart."""

    vocabulary: "Vocabulary"
    reasoning: "Reasoning | None"  # None: all is the answer
    calls: bool  # tool calls are no text
    opening: str = ""  # text with which a call begins; empty: a control token opens calls
    channel: str = ""  # name that the model writes after a control token that opens reasoning
    free: bool = True  # whether the answer's text before the first call is never refused
    stop: Sequence[str] = ()  # the answer ends before the first of these
    refused_opening: str = (
        ""  # of a call that did not fit: the answer ends before what it has of it
    )
    _emitted: int = field(default=0, init=False)  # tokens
    _answered: int = field(default=0, init=False)  # tokens of the answer
    _text: str = field(default="", init=False)
    _reasoning_text: str = field(default="", init=False)
    _read: tuple[list[int], bytes] = field(default=([], b""), init=False)  # tokens, and their bytes

    def emit(
        self, tokens: list[int], ended: bool = False, text_tokens: list[int] | None = None
    ) -> NewPart:
        """Return what is new in `tokens`, all that are final.

        `text_tokens` are those of them that are text; None: all. Unless the answer has `ended`, a
        character that lacks bytes is held back, and so is the possible beginning of a text of
        `stop`.
        """
        if len(tokens) == self._emitted and not ended:
            return NewPart([], [], "", "")
        thought, answer = self.split(tokens if text_tokens is None else text_tokens, ended)
        text = self.text(answer, ended)
        new = NewPart(
            tokens[self._emitted :],
            answer[self._answered :],
            text[len(self._text) :],
            thought[len(self._reasoning_text) :],
        )
        self._emitted, self._answered = len(tokens), max(self._answered, len(answer))
        self._text, self._reasoning_text = text, thought
        return new

    def split(self, tokens: list[int], ended: bool = True) -> tuple[str, list[int]]:
        """Return the text of the reasoning and the tokens of the answer."""
        if self.reasoning is None:
            return "", tokens
        raw, answer = self.reasoning.split(tokens, ended)
        thought = _decode(raw, ended)
        if self.reasoning.open.size:  # the marker is text: there is no channel and no name
            return thought.strip(), answer
        named = self.channel.startswith(thought)
        return "" if named else thought.removeprefix(self.channel).strip(), answer

    def answer_places(self, tokens: list[int], ended: bool = True) -> Sequence[int]:
        """Return the indices of the answer in `tokens`: those that are no reasoning."""
        if self.reasoning is None:
            return range(len(tokens))
        return self.reasoning.answer_places(tokens, ended)

    def free_text(self, tokens: list[int]) -> range:
        """Return the indices of the answer's free text in `tokens`: after the reasoning, before the
        first call. Tokens before the end of this range stay even if the answer is refused."""
        answer = self.split(tokens, False)[1]
        begin = len(tokens) - len(answer)
        return range(begin, begin + (self._call_at(answer) if self.free else 0))

    def text_tokens(self, answer: list[int], ended: bool) -> int:
        """Return how many of an answer's first tokens belong to its text whatever comes: those
        before the first call and, unless it has `ended`, before what may begin one."""
        call_at = self._call_at(answer)
        if ended or call_at < len(answer) or not self.calls or not self.opening:
            return call_at
        raw = self._raw(answer)
        opening = self.opening.encode().decode("latin-1")  # a character for each byte
        kept = len(raw) - begun_at_end(raw.decode("latin-1"), opening)
        free_of_calls = not self.free and raw[:kept].strip()  # a call would begin the answer
        return len(answer) if free_of_calls else self._tokens_within(answer, kept)

    def text(self, answer: list[int], ended: bool = True) -> str:
        """Return the text of an answer before the first text of `stop`."""
        text = self._spelled(answer, ended)
        if (at := self._stop_at(text)) is not None:
            return text[:at]
        text = text[: len(text) - begun_at_end(text, self.refused_opening)]
        return text if ended else text[: len(text) - self._held_back(text, answer)]

    def stopped_at(self, tokens: list[int], start: int) -> int | None:
        """Return the number of `tokens` with which a text of `stop` is complete; None: there is
        none. The first `start` tokens hold no such text."""

        def complete(count: int) -> bool:
            answer = self.split(tokens[:count], False)[1]
            return self._stop_at(self._spelled(answer, False)) is not None

        if not self.stop or not complete(len(tokens)):
            return None
        return bisect_left(range(len(tokens) + 1), True, lo=start, key=complete)

    def _stop_at(self, text: str) -> int | None:
        """Return where the first text of `stop` begins."""
        return min((at for stop in self.stop if (at := text.find(stop)) >= 0), default=None)

    def _held_back(self, text: str, answer: list[int]) -> int:
        """Return how many characters at the end of `text` may begin a text of `stop`, or a call
        and the blanks before it."""
        stopping = max((begun_at_end(text, stop) for stop in self.stop), default=0)
        if not self.calls or not self.opening or self._call_at(answer) < len(answer):
            return stopping
        kept = text[: len(text) - begun_at_end(text, self.opening)].rstrip()
        if kept and not self.free:
            return stopping  # a call would begin the answer
        return max(stopping, len(text) - len(kept))

    def _spelled(self, answer: list[int], ended: bool) -> str:
        raw = self._raw(answer)
        if (end := self._opened(raw)) is not None:
            return _decode(raw[:end], True).rstrip()
        return _decode(self._raw(answer[: self._call_at(answer)]), ended)

    def _call_at(self, answer: list[int]) -> int:
        """Return the index of the first call's first token, or the length if there is no call."""
        if not self.calls:
            return len(answer)
        if self.opening:
            end = self._opened(self._raw(answer))
            if end is None:
                return len(answer)
            return self._tokens_within(answer, end)
        call = self.vocabulary.call
        if call is None or call.open not in answer:
            return len(answer)
        return answer.index(call.open)

    def _tokens_within(self, tokens: list[int], size: int) -> int:
        """Return how many first tokens end within the first `size` bytes."""
        ends = accumulate(len(self.vocabulary.pieces[token]) for token in tokens)
        return bisect_right([*ends], size)

    def _opened(self, raw: bytes) -> int | None:
        """Return where the text that opens the first call begins; None if there is none. Where the
        answer is not free text, a call is all of it."""
        if not self.calls or not self.opening:
            return None
        at = raw.find(self.opening.encode())
        return None if at < 0 or (not self.free and raw[:at].strip()) else at

    def _raw(self, tokens: list[int]) -> bytes:
        """Return the bytes of `tokens`. Only those after the ones that were read last are read."""
        read, raw = self._read
        if tokens[: len(read)] != read:
            read, raw = [], b""
        raw += b"".join(map(self.vocabulary.pieces.__getitem__, tokens[len(read) :]))
        self._read = tokens[:], raw
        return raw


def begun_at_end(text: str, word: str) -> int:
    """Return how many characters at the end of `text` begin `word`, without being all of it."""
    sizes = range(min(len(text), len(word) - 1), 0, -1)
    return next((n for n in sizes if word.startswith(text[-n:])), 0)


def _decode(raw: bytes, ended: bool) -> str:
    return codecs.getincrementaldecoder("utf-8")("replace").decode(raw, ended)
