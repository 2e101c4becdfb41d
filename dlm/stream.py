"""What of a request's tokens has been told to its reader: whole characters, each once."""

import codecs
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from dlm.grammar import Reasoning, Vocabulary

_CHANNEL = "thought"  # the name that Gemma 4 writes behind the marker that opens reasoning


@dataclass(slots=True, kw_only=True)
class Stream:
    """Final tokens to text. Reasoning and answer come apart."""

    vocabulary: Vocabulary
    reasoning: Reasoning | None  # None: all is the answer
    calls: bool  # tool calls are no text
    free: bool = True  # the answer, or its text before the first call, is never refused
    stop: Sequence[str] = ()  # the answer ends before the first of these
    _told: int = field(default=0, init=False)  # tokens
    _text: str = field(default="", init=False)
    _thought: str = field(default="", init=False)

    def tell(
        self, tokens: list[int], ended: bool = False, said: list[int] | None = None
    ) -> tuple[list[int], str, str]:
        """What is new in `tokens`, all that are final: tokens, text of the answer, reasoning.

        `said` are those of them that are text; None: all. Unless the answer has `ended`, a
        character that lacks bytes waits for them, and what a text of `stop` may begin with for
        what follows.
        """
        if len(tokens) == self._told and not ended:
            return [], "", ""
        thought, answer = self.split(tokens if said is None else said, ended)
        text = self.text(answer, ended)
        new = tokens[self._told :], text[len(self._text) :], thought[len(self._thought) :]
        self._told, self._text, self._thought = len(tokens), text, thought
        return new

    def split(self, tokens: list[int], ended: bool = True) -> tuple[str, list[int]]:
        """The text of the reasoning, and the tokens of the answer."""
        if self.reasoning is None:
            return "", tokens
        raw, answer = self.reasoning.split(tokens, ended)
        thought = _decode(raw, ended)
        if self.reasoning.open.size:  # the marker is text: no channel, and no name of one
            return thought.strip(), answer
        named = "" if _CHANNEL.startswith(thought) else thought.removeprefix(_CHANNEL)
        return named.strip(), answer

    def free_text(self, tokens: list[int]) -> range:
        """The places of the answer's free text in `tokens`: after the reasoning, and before the
        first call. What comes before the end of it stays even if the answer is refused."""
        answer = self.split(tokens, False)[1]
        begin = len(tokens) - len(answer)
        return range(begin, begin + (self._call_at(answer) if self.free else 0))

    def text(self, answer: list[int], ended: bool = True) -> str:
        """Of an answer, in front of the first text of `stop`."""
        text = self._spelled(answer, ended)
        if (at := self._stopped(text)) is not None:
            return text[:at]
        return text if ended else text[: len(text) - self._begun(text)]

    def stopped_at(self, tokens: list[int], known: int) -> int | None:
        """With how many of `tokens`, of which the first `known` hold none, a text of `stop` is
        complete; None: there is none."""

        def complete(count: int) -> bool:
            answer = self.split(tokens[:count], False)[1]
            return self._stopped(self._spelled(answer, False)) is not None

        if not self.stop or not complete(len(tokens)):
            return None
        return bisect_left(range(len(tokens) + 1), True, lo=known, key=complete)

    def _stopped(self, text: str) -> int | None:
        """Where the first text of `stop` begins."""
        return min((at for stop in self.stop if (at := text.find(stop)) >= 0), default=None)

    def _begun(self, text: str) -> int:
        """How many characters at the end of `text` one of them may begin with."""
        sizes = range(min(len(text), max(map(len, self.stop), default=1) - 1), 0, -1)
        ends = (n for n in sizes if any(stop.startswith(text[-n:]) for stop in self.stop))
        return next(ends, 0)

    def _spelled(self, answer: list[int], ended: bool) -> str:
        answer = answer[: self._call_at(answer)]
        return _decode(b"".join(map(self.vocabulary.pieces.__getitem__, answer)), ended)

    def _call_at(self, answer: list[int]) -> int:
        """The first token of the first call; without calls, the end."""
        call = self.vocabulary.call
        if not self.calls or call is None or call.open not in answer:
            return len(answer)
        return answer.index(call.open)


def _decode(raw: bytes, ended: bool) -> str:
    return codecs.getincrementaldecoder("utf-8")("replace").decode(raw, ended)
