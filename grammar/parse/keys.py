"""The keys of the JSON objects that a text has begun: no object may hold a key twice.

Rules cannot say it of keys that they do not name, and readers differ in what they make of it (RFC
8259, section 4). So it is watched beside the parser. Knows JSON's tokens, and no grammar.
"""

import json
import re
from dataclasses import dataclass

from dlm.grammar.quotes import QuotedTokens

_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_OPEN, _CLOSE = b"{[", b"}]"
_ESCAPED = re.compile(r'["\\/\x00-\x1f\ud800-\udfff]')  # in a key: may be spelled by short escapes


@dataclass(frozen=True, slots=True)
class Keys:
    """Where a JSON text is. Never changed."""

    objects: tuple[frozenset[str] | None, ...] = ()  # keys of what is open; None: of an array
    key: bytes | None = None  # what there is of the key that is being read
    expected: bool = False  # the next string is a key
    string: bool = False  # within a string
    escaped: bool = False  # behind a backslash

    def after(self, piece: bytes) -> "Keys | None":
        """Behind some more bytes of it; None where they end a key that is there already."""
        objects, key, expected = self.objects, self.key, self.expected
        string, escaped = self.string, self.escaped
        for byte in piece:
            if string:
                if escaped or byte != _QUOTE:
                    escaped = byte == _BACKSLASH and not escaped
                    key = None if key is None else key + bytes([byte])
                    continue
                string = False
                if key is not None:
                    name, held = _decoded(key), objects[-1] or frozenset()
                    if name in held:
                        return None
                    objects, key, expected = (*objects[:-1], held | {name}), None, False
            elif byte == _QUOTE:
                string, key = True, b"" if expected else None
            elif byte in _OPEN:
                expected = byte == _OPEN[0]
                objects = (*objects, frozenset() if expected else None)
            elif byte in _CLOSE:
                objects, expected = objects[:-1], False
            elif byte == _COMMA:
                expected = bool(objects) and objects[-1] is not None
        return Keys(objects, key, expected, string, escaped)

    def suspects(self, tokens: QuotedTokens) -> set[int]:
        """All tokens that `after` refuses, and perhaps some more."""
        open_keys = [key for keys in self.objects for key in keys or ()]
        if self.key and b"\\" in self.key:
            return {*tokens.pieces}
        found = {*tokens.odd}
        if any(map(_ESCAPED.search, open_keys)):
            found |= tokens.escaping
        for key in open_keys:
            found.update(tokens.whole.get(key.encode(), ()))
        if self.key is not None:
            begun, size = self.key, len(self.key)
            rests = (key.encode() for key in self.objects[-1] or ())
            for rest in rests:
                if rest.startswith(begun):
                    found.update(tokens.ending.get(rest[size:], ()))
        return found

    def dangers(self, tokens: QuotedTokens) -> set[int]:
        """Those, too, that may lead to where no other key is left, but for how `rivals` begin."""
        if self.key is not None:
            return self.suspects(tokens) | tokens.joining | tokens.escapes
        return tokens.joining if self.string else tokens.commas | tokens.pieces.keys()

    @property
    def rivals(self) -> list[bytes]:
        """How the key that is read, or that comes next, may not go on: as those that are there do,
        to the closing quote and with it."""
        held = self.objects[-1] if self.objects else None
        if not held or (self.key is None and (self.string or not self.expected)):
            return []
        begun = self.key or b""
        spelled = (key.encode(errors="surrogatepass") for key in held)
        return [key[len(begun) :] + b'"' for key in spelled if key.startswith(begun)]

    @property
    def doubtful(self) -> bool:
        """An object that is open has a key already."""
        return any(self.objects)

    @property
    def double(self) -> bool:
        """What is being read must go on: as it is, the key is there already."""
        held = self.objects[-1] if self.objects else None
        if self.key is None or self.escaped or not held:
            return False
        try:
            return _decoded(self.key) in held
        except ValueError:  # it ends within an escape
            return False


def _decoded(key: bytes) -> str:
    if b"\\" not in key:  # nearly all: several times as fast
        return key.decode()
    return json.loads(b'"%s"' % key)
