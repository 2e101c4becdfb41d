"""What of a request's tokens has been told to its reader: whole characters, each once."""

import codecs
from dataclasses import dataclass, field

from dlm.grammar import Reasoning, Vocabulary

_CHANNEL = "thought"  # the name that Gemma 4 writes behind the marker that opens reasoning


@dataclass(slots=True, kw_only=True)
class Stream:
    """Final tokens to text. Reasoning and answer come apart."""

    vocabulary: Vocabulary
    reasoning: Reasoning | None  # None: all is the answer
    calls: bool  # tool calls are no text
    _told: int = field(default=0, init=False)  # tokens
    _text: str = field(default="", init=False)
    _thought: str = field(default="", init=False)

    def tell(self, tokens: list[int], ended: bool = False) -> tuple[list[int], str, str]:
        """What is new in `tokens`, all that are final: tokens, text of the answer, reasoning.

        A character that lacks bytes waits for them, unless the answer has `ended`.
        """
        if len(tokens) == self._told:
            return [], "", ""
        thought, answer = self.split(tokens, ended)
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

    def text(self, answer: list[int], ended: bool = True) -> str:
        call = self.vocabulary.call
        if self.calls and call is not None and call.open in answer:
            answer = answer[: answer.index(call.open)]
        return _decode(b"".join(self.vocabulary.pieces[token] for token in answer), ended)


def _decode(raw: bytes, ended: bool) -> str:
    return codecs.getincrementaldecoder("utf-8")("replace").decode(raw, ended)
