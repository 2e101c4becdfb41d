"""Tool calls as they become final: from Gemma's own form, token by token, to JSON arguments.

The way back is that of `dlm.grammar.calls.gemma`, which reads a finished answer; here a call is
told of before it is over. It takes what the grammar of tools allows, and checks nothing.
"""

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dlm.grammar import Vocabulary
from dlm.grammar.schema.dialect import BARE_VALUE

_WORDS = "|".join(
    word[:end] for word in ("true", "false", "null") for end in range(1, len(word) + 1)
)
_BEGUN = re.compile(rf"(?:-?[0-9]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]*)?|{_WORDS})")  # of a value


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
    after: str | None = None  # the text after a colon that may end the key; None: there was none
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
            if call.after == "":
                yield self._end_key(call)
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
        elif call.after is not None:
            yield from self._after_colon(call, call.after + character)
        elif call.keyed and character == ":":
            call.after = ""
        elif call.keyed and (character != "}" or call.said):
            call.said += character
        else:
            if call.name is None:
                call.name, call.said = call.said.removeprefix("call:"), ""
                yield CallDelta(self._index, call.name, "")
            yield self._piece(self._value(call, character))

    def _after_colon(self, call: _Call, after: str) -> Iterator[CallDelta]:
        """Decide whether a colon ends the key, by the text after it: `dialect.is_bare`."""
        if BARE_VALUE.match(after):
            yield self._end_key(call)
            for character in after:
                yield self._piece(self._value(call, character))
        elif _BEGUN.fullmatch(after):
            call.after = after
        else:
            call.said, call.after = f"{call.said}:{after[:-1]}", None
            yield from self._take(call, after[-1])

    def _end_key(self, call: _Call) -> CallDelta:
        key = json.dumps(call.said, ensure_ascii=False)
        call.said, call.keyed, call.after = "", False, None
        return self._piece(f"{key}: ")

    def _value(self, call: _Call, character: str) -> str:
        """What a character of a value, or between values, is in JSON."""
        if character in "{[":
            call.inside.append(character)
        elif character in "}]":
            call.inside.pop()
        call.keyed = character in "{," and call.inside[-1:] == ["{"]
        return ", " if character == "," else character
