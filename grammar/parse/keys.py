"""The keys of the JSON objects that a text has begun: no object may hold a key twice.

Rules cannot say it of keys that they do not name, and readers differ in what they make of it (RFC
8259, section 4). So it is watched beside the parser. Knows JSON's tokens, and no grammar.
"""

import json
from dataclasses import dataclass

_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_OPEN, _CLOSE = b"{[", b"}]"


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

    @property
    def doubtful(self) -> bool:
        """What is being read may become a key that is there already."""
        if not self.objects or not self.objects[-1] or not (self.expected or self.key):
            return False
        return self.key is None or b"\\" in self.key or self._begins(self.key)

    @property
    def double(self) -> bool:
        """What is being read must go on: as it is, the key is there already."""
        if self.key is None or self.escaped or not self.objects:
            return False
        try:
            return _decoded(self.key) in (self.objects[-1] or ())
        except ValueError:  # it ends within an escape
            return False

    def _begins(self, key: bytes) -> bool:
        text = key.decode(errors="ignore")
        return any(name.startswith(text) for name in self.objects[-1] or ())


def _decoded(key: bytes) -> str:
    return json.loads(b'"%s"' % key)
