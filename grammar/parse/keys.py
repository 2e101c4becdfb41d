"""What of a JSON text may not repeat: keys of its objects, and items of some of its arrays.

Rules cannot say it of what they do not name, and readers differ in what they make of a key that
comes twice (RFC 8259, section 4). So it is watched beside the parser. Knows JSON's tokens, and no
grammar: which arrays are of distinct items has to be told.
"""

import json
import re
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
from jaxtyping import UInt32

from dlm.grammar.parse.partial import Partial, hashable
from dlm.grammar.quotes import QuotedTokens

_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_OPEN, _CLOSE = b"{[", b"}]"
_SPACE = b" \t\r\n"
_NUMBER = b"0123456789+-.eE"
_ESCAPED = re.compile(r'["\\/\x00-\x1f\ud800-\udfff]')  # in a key: may be spelled by short escapes


@dataclass(frozen=True, slots=True)
class Items:
    """An open array whose items are distinct."""

    begun: int = 0  # where the item that is being read begins in `Keys.text`
    texts: frozenset[bytes] = frozenset()  # the items so far, in their plainest spelling
    values: frozenset[Hashable] = frozenset()  # the same, equal where their values are


@dataclass(frozen=True, slots=True)
class Keys:
    """Where a JSON text is. Never changed."""

    open: tuple[frozenset[str] | Items | None, ...] = ()  # keys of objects; None: any array
    key: bytes | None = None  # what there is of the key that is being read
    expected: bool = False  # the next string is a key
    string: bool = False  # within a string
    escaped: bool = False  # after a backslash
    text: bytes = b""  # without white space, since the outermost item that has to be distinct began

    def after(
        self, piece: bytes, is_distinct: Callable[[int], bool] | None = None
    ) -> "Keys | None":
        """The place after `piece`; None where it ends a key or an item that is there already.

        `is_distinct` says of the array that the byte at a place of `piece` opens whether its items
        have to be distinct; None: no items have to be.
        """
        open_, key, expected = self.open, self.key, self.expected
        string, escaped, text = self.string, self.escaped, bytearray(self.text)
        watched = any(isinstance(each, Items) for each in open_)
        for place, byte in enumerate(piece):
            if string:
                if watched:
                    text.append(byte)
                if escaped or byte != _QUOTE:
                    escaped = byte == _BACKSLASH and not escaped
                    key = None if key is None else key + bytes([byte])
                    continue
                string = False
                if key is not None:
                    name, held = _decoded(key), open_[-1]
                    if not isinstance(held, frozenset) or name in held:
                        return None
                    open_, key, expected = (*open_[:-1], held | {name}), None, False
                elif watched and _repeats(open_, text):
                    return None
                continue
            if byte in _SPACE:
                continue
            if byte == _QUOTE:
                string, key = True, b"" if expected else None
            elif byte == _COMMA:
                top = open_[-1] if open_ else None
                expected = isinstance(top, frozenset)
                if isinstance(top, Items):
                    kept = _with_item(top, text)
                    if kept is None:
                        return None
                    if kept.begun == 0:  # the outermost: nobody needs what comes before
                        text, open_ = bytearray(), (*open_[:-1], kept)
                    else:
                        text.append(byte)
                        open_ = (*open_[:-1], _begun(kept, len(text)))
                    continue
            elif byte in _CLOSE:
                top, open_, expected = open_[-1] if open_ else None, open_[:-1], False
                if isinstance(top, Items):
                    if len(text) > top.begun and _with_item(top, text) is None:
                        return None
                    watched = any(isinstance(each, Items) for each in open_)
                if watched:
                    text.append(byte)
                    if _repeats(open_, text):
                        return None
                else:
                    text = bytearray()
                continue
            if watched:
                text.append(byte)
            if byte in _OPEN:
                expected = byte == _OPEN[0]
                distinct = not expected and is_distinct is not None and is_distinct(place)
                watched = watched or distinct
                frame = Items(len(text)) if distinct else frozenset() if expected else None
                open_ = (*open_, frame)
        return Keys(open_, key, expected, string, escaped, bytes(text))

    def suspects(self, tokens: QuotedTokens) -> set[int]:
        """All tokens that `after` refuses for their keys, and perhaps some more."""
        open_keys = [key for keys in self.open if isinstance(keys, frozenset) for key in keys]
        if self.key and b"\\" in self.key:
            return {*tokens.pieces}
        found = {*tokens.odd}
        if any(map(_ESCAPED.search, open_keys)):
            found |= tokens.escaping
        for key in open_keys:
            found.update(tokens.whole.get(key.encode(), ()))
        if self.key is not None:
            begun, size = self.key, len(self.key)
            rests = (key.encode() for key in self._held())
            for rest in rests:
                if rest.startswith(begun):
                    found.update(tokens.ending.get(rest[size:], ()))
        return found

    def dangers(self, tokens: QuotedTokens) -> set[int]:
        """Those, too, that may lead to where no other key is left, but for how `taken` begin."""
        if self.key is not None:
            return self.suspects(tokens) | tokens.joining | tokens.escapes
        return tokens.joining if self.string else tokens.commas | tokens.pieces.keys()

    def item_suspects(self, tokens: QuotedTokens) -> UInt32[np.ndarray, " words"]:
        """All tokens that may end an item which is there already, and perhaps some more.

        As packed bits; without those that only begin as `taken` do.
        """
        if not self.watched:
            return tokens.packed["opening"]
        if self.string:
            return tokens.packed["ending" if self.may_repeat_item else "joining"]
        return tokens.packed["structural"]

    @property
    def watched(self) -> bool:
        """An array is open whose items have to be distinct."""
        return any(isinstance(each, Items) for each in self.open)

    @property
    def taken(self) -> list[bytes]:
        """How the text may not go on from here: to keys and items that are there already.

        Keys with the closing quote. What is spelled otherwise is not among them.
        """
        found: list[bytes] = []
        if self.may_repeat_key:
            begun = self.key or b""
            names = (json.dumps(name, ensure_ascii=False)[1:].encode() for name in self._held())
            found += [name[len(begun) :] for name in names if name.startswith(begun)]
            if self.key is None:
                found = [b'"' + rest for rest in found]
        for rest, items in self._begun_items():
            found += [text[len(rest) :] for text in items.texts if text.startswith(rest)]
            if rest[:1] in (b"[", b"{"):
                partial = Partial(rest)
                for value in items.values:
                    found += filter(None, partial.continuations(value))
        return found

    @property
    def may_repeat_key(self) -> bool:
        """The key that is being read, or that has to come next, may become one that is there."""
        held = self._held()
        if not held or (self.key is None and (self.string or not self.expected)):
            return False
        begun = self.key or b""
        return b"\\" in begun or any(
            json.dumps(name, ensure_ascii=False)[1:].encode().startswith(begun) for name in held
        )

    @property
    def may_repeat_item(self) -> bool:
        """An item that is being read, or that has to come next, may become one that is there."""
        return any(self._may_repeat(each) for each in self.open if isinstance(each, Items))

    @property
    def at_risk(self) -> dict[int, int]:
        """The open objects and arrays of which a key or an item may still become one that is there.

        By their places in `open`, with how many they hold.
        """
        found = {
            place: len(each.texts)
            for place, each in enumerate(self.open)
            if isinstance(each, Items) and self._may_repeat(each)
        }
        if self.may_repeat_key:
            found[len(self.open) - 1] = len(self._held())
        return found

    def _may_repeat(self, items: Items) -> bool:
        rest = self.text[items.begun :]
        if not items.texts:
            return False
        if items is self.open[-1] and not self.string and rest[-1:] in (b'"', b"]", b"}"):
            return False  # the item has ended, and was not there
        # an escape may spell any character, and a number many ways: they are known at their end
        sure = rest if self.string else rest.rstrip(_NUMBER)
        if any(text.startswith(sure) for text in items.texts):
            return True
        if rest[:1] in (b"[", b"{"):
            partial = Partial(rest)
            return any(partial.may_become(value) for value in items.values)
        return b"\\" in rest

    @property
    def doubtful(self) -> bool:
        """An object that is open has a key already, or an array an item."""
        return any(isinstance(each, Items) or bool(each) for each in self.open)

    def _held(self) -> frozenset[str]:
        """The keys of the innermost object."""
        top = self.open[-1] if self.open else None
        return top if isinstance(top, frozenset) else frozenset()

    def _begun_items(self) -> Iterator[tuple[bytes, Items]]:
        """What there is of an item, and the array that has others."""
        for each in self.open:
            if isinstance(each, Items) and each.texts:
                yield self.text[each.begun :], each


def _repeats(open_: tuple[frozenset[str] | Items | None, ...], text: bytearray) -> bool:
    """Whether a string, an array or an object that has just ended is an item that was there."""
    top = open_[-1] if open_ else None
    return isinstance(top, Items) and bool(top.texts) and _with_item(top, text) is None


def _with_item(items: Items, text: bytearray) -> Items | None:
    """With the item that ends `text`; None if it was there."""
    raw = bytes(text[items.begun :])
    try:
        item = json.loads(raw, parse_float=Decimal, parse_int=Decimal)
        value = hashable(item)
        spelled = raw
        if b"\\" in raw:  # in its plainest spelling
            plain = json.dumps(json.loads(raw), ensure_ascii=False, separators=(",", ":"))
            spelled = plain.encode()
    except (RecursionError, ArithmeticError, ValueError):  # nobody compares what nobody can hold
        value = spelled = raw
    if value in items.values:
        return None
    return Items(items.begun, items.texts | {spelled}, items.values | {value})


def _begun(items: Items, begun: int) -> Items:
    return Items(begun, items.texts, items.values)


def _decoded(key: bytes) -> str:
    if b"\\" not in key:  # nearly all: several times as fast
        return key.decode()
    return json.loads(b'"%s"' % key)
