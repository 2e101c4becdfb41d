"""Tool calls as they become final: from Gemma's own form, token by token, to JSON arguments.

The way back is that of `dlm.grammar.calls.gemma`, which reads a finished answer; here a call is
told of before it is over. It takes what the grammar of tools allows, and checks nothing.
"""

import codecs
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dlm.grammar import Vocabulary


@dataclass(slots=True)
class CallDelta:
    """A piece of a call: its name, once, with no arguments yet; or some of their JSON text."""

    index: int  # of the call in its answer
    name: str | None
    arguments: str


@dataclass(slots=True)
class _Call:
    """One that is being read."""

    name: str | None = None  # until it is known
    said: str = ""  # of the name, or of a key, so far
    inside: list[str] = field(default_factory=list)  # "{" and "[" that are open
    keyed: bool = False  # a key comes next
    quoted: bool = False  # within a string


class CallStream:
    """The calls of one answer."""

    def __init__(self, vocabulary: Vocabulary):
        if vocabulary.call is None:
            raise ValueError("this vocabulary has no tokens of tool calls")
        self._markers, self._pieces = vocabulary.call, vocabulary.pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._call: _Call | None = None
        self._index = -1

    def tell(self, tokens: Sequence[int]) -> list[CallDelta]:
        """What the next final `tokens` say of calls: one piece of each at most, behind its name."""
        deltas: list[CallDelta] = []
        for token in tokens:
            for delta in self._read(token):
                last = deltas[-1] if deltas else None
                if last and delta.name is None and (last.index, last.name) == (delta.index, None):
                    last.arguments += delta.arguments
                else:
                    deltas.append(delta)
        return deltas

    def _read(self, token: int) -> Iterator[CallDelta]:
        markers, call = self._markers, self._call
        if token == markers.open:
            self._call, self._index = _Call(), self._index + 1
        elif call is None:
            return
        elif token == markers.close:
            self._call = None
        elif token == markers.quote:
            call.quoted = not call.quoted
            yield self._piece('"')
        else:
            for character in self._decoder.decode(self._pieces[token]):
                yield from self._take(call, character)

    def _piece(self, arguments: str) -> CallDelta:
        return CallDelta(self._index, None, arguments)

    def _take(self, call: _Call, character: str) -> Iterator[CallDelta]:
        if call.quoted:
            yield self._piece(json.dumps(character, ensure_ascii=False)[1:-1])
        elif call.name is None and character != "{":
            call.said += character
        elif call.keyed and character == ":":
            yield self._piece(f"{json.dumps(call.said, ensure_ascii=False)}: ")
            call.said, call.keyed = "", False
        elif call.keyed and character != "}":
            call.said += character
        else:
            if call.name is None:
                call.name, call.said = call.said.removeprefix("call:"), ""
                yield CallDelta(self._index, call.name, "")
            yield self._piece(self._value(call, character))

    def _value(self, call: _Call, character: str) -> str:
        """What a character of a value, or between values, is in JSON."""
        if character in "{[":
            call.inside.append(character)
        elif character in "}]":
            call.inside.pop()
        call.keyed = character in "{," and call.inside[-1:] == ["{"]
        return ", " if character == "," else character
