"""Keys of JSON objects, and items of arrays with distinct items: neither may come twice.

Rules can not forbid a repetition of keys that they do not name, and parsers disagree about keys
that come twice (RFC 8259, section 4). So `Keys` follows the text beside the parser.

A repeated key or item is refused at its end. That may be too late: if all keys of three letters
are taken, no other end is left. So a token is allowed only if a new key or item can still be
reached after it. `Uniqueness` searches for a `Detour`, a text that leads there. `UniqueText` is
the grammar's shortest text to the end, with a detour in place of each repetition.

`Keys` knows JSON's tokens, and no grammar: the caller reports which arrays have distinct items.
"""

import heapq
import json
import re
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from sys import maxsize
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt32

from dlm.grammar.limits import Meter
from dlm.grammar.parse.earley import Parser, State
from dlm.grammar.parse.shared_masks import Partial, hashable
from dlm.grammar.vocabulary import QuotedTokens

_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_OPEN, _CLOSE = b"{[", b"}]"
_SPACE = b" \t\r\n"
_NUMBER = b"0123456789+-.eE"
_ESCAPED = re.compile(r'["\\/\x00-\x1f\ud800-\udfff]')  # characters of a key with short escapes


@dataclass(frozen=True, slots=True)
class SeenItems:
    """The items of an open array that has to hold distinct items."""

    begun: int = 0  # the start of the current item in `Keys.text`
    texts: frozenset[bytes] = frozenset()  # the items so far, without needless escapes
    values: frozenset[Hashable] = frozenset()  # their values, by `hashable`


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys and items of a JSON text so far. Immutable."""

    open: tuple[frozenset[str] | SeenItems | None, ...] = ()  # keys of objects; None: an array
    key: bytes | None = None  # the beginning of the key that is being read
    expected: bool = False  # the next string is a key
    string: bool = False  # within a string
    escaped: bool = False  # after a backslash
    text: bytes = b""  # from the outermost distinct item on, without white space

    def after(
        self, piece: bytes, is_distinct: Callable[[int], bool] | None = None
    ) -> "Keys | None":
        """Return the keys after `piece`; None if it ends a key or a distinct item a second time.

        `is_distinct(place)` is whether the array opened by byte `place` of `piece` has distinct
        items; None: no array has.
        """
        open_, key, expected = self.open, self.key, self.expected
        string, escaped, text = self.string, self.escaped, bytearray(self.text)
        watched = any(isinstance(each, SeenItems) for each in open_)
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
                if isinstance(top, SeenItems):
                    added = _with_item(top, text)
                    if added is None:
                        return None
                    if added.begun == 0:  # the outermost: the text before it is not needed
                        text, open_ = bytearray(), (*open_[:-1], added)
                    else:
                        text.append(byte)
                        open_ = (*open_[:-1], SeenItems(len(text), added.texts, added.values))
                    continue
            elif byte in _CLOSE:
                top, open_, expected = open_[-1] if open_ else None, open_[:-1], False
                if isinstance(top, SeenItems):
                    if len(text) > top.begun and _with_item(top, text) is None:
                        return None
                    watched = any(isinstance(each, SeenItems) for each in open_)
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
                frame = SeenItems(len(text)) if distinct else frozenset() if expected else None
                open_ = (*open_, frame)
        return Keys(open_, key, expected, string, escaped, bytes(text))

    def suspects(self, tokens: QuotedTokens) -> set[int]:
        """Return a superset of the tokens that `after` refuses for their keys."""
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

    def dead_end_suspects(self, tokens: QuotedTokens) -> set[int]:
        """Return a superset of `suspects` and of the tokens after which no new key may be left.

        Beginnings of `taken_continuations` are not included.
        """
        if self.key is not None:
            return self.suspects(tokens) | tokens.joining | tokens.escapes
        return tokens.joining if self.string else tokens.commas | tokens.pieces.keys()

    def item_suspects(self, tokens: QuotedTokens) -> UInt32[np.ndarray, " words"]:
        """Return a superset of the tokens that may end a repeated item, as packed bits.

        Beginnings of `taken_continuations` are not included.
        """
        if not self.watched:
            return tokens.packed["opening"]
        if self.string:
            return tokens.packed["ending" if self.may_repeat_item else "joining"]
        return tokens.packed["structural"]

    @property
    def watched(self) -> bool:
        """Whether an array is open whose items have to be distinct."""
        return any(isinstance(each, SeenItems) for each in self.open)

    @property
    def taken_continuations(self) -> list[bytes]:
        """Continuations of the text that would repeat a key, with its closing quote, or an item.

        Other spellings of them are not included.
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
        """Whether the current key, or the one that must come next, may repeat another key."""
        held = self._held()
        if not held or (self.key is None and (self.string or not self.expected)):
            return False
        begun = self.key or b""
        return b"\\" in begun or any(
            json.dumps(name, ensure_ascii=False)[1:].encode().startswith(begun) for name in held
        )

    @property
    def may_repeat_item(self) -> bool:
        """Whether a current item, or one that must come next, may repeat another item."""
        return any(self._may_repeat(each) for each in self.open if isinstance(each, SeenItems))

    @property
    def at_risk(self) -> dict[int, int]:
        """Open objects and arrays whose next key or item may be a repetition.

        Maps their indices in `open` to the number of keys or items that they hold.
        """
        found = {
            place: len(each.texts)
            for place, each in enumerate(self.open)
            if isinstance(each, SeenItems) and self._may_repeat(each)
        }
        if self.may_repeat_key:
            found[len(self.open) - 1] = len(self._held())
        return found

    def _may_repeat(self, items: SeenItems) -> bool:
        rest = self.text[items.begun :]
        if not items.texts:
            return False
        if items is self.open[-1] and not self.string and rest[-1:] in (b'"', b"]", b"}"):
            return False  # the item has ended, and is new
        # a number has many spellings: it is compared at its end
        sure = rest if self.string else rest.rstrip(_NUMBER)
        if any(text.startswith(sure) for text in items.texts):
            return True
        if rest[:1] in (b"[", b"{"):
            partial = Partial(rest)
            return any(partial.may_become(value) for value in items.values)
        return b"\\" in rest  # an escape may spell any character

    @property
    def has_entries(self) -> bool:
        """Whether an object with a key is open, or an array with distinct items."""
        return any(isinstance(each, SeenItems) or bool(each) for each in self.open)

    def _held(self) -> frozenset[str]:
        """The keys of the innermost object."""
        top = self.open[-1] if self.open else None
        return top if isinstance(top, frozenset) else frozenset()

    def _begun_items(self) -> Iterator[tuple[bytes, SeenItems]]:
        """Yield the beginnings of current items, with the arrays that hold others."""
        for each in self.open:
            if isinstance(each, SeenItems) and each.texts:
                yield self.text[each.begun :], each


def _repeats(open_: tuple[frozenset[str] | SeenItems | None, ...], text: bytearray) -> bool:
    """Whether the string, array or object that ends `text` is a repeated item."""
    top = open_[-1] if open_ else None
    return isinstance(top, SeenItems) and bool(top.texts) and _with_item(top, text) is None


def _with_item(items: SeenItems, text: bytearray) -> SeenItems | None:
    """Return `items` with the item that ends `text`; None if that is a repetition."""
    raw = bytes(text[items.begun :])
    try:
        item = json.loads(raw, parse_float=Decimal, parse_int=Decimal)
        value = hashable(item)
        spelled = raw
        if b"\\" in raw:
            plain = json.dumps(json.loads(raw), ensure_ascii=False, separators=(",", ":"))
            spelled = plain.encode()
    except (RecursionError, ArithmeticError, ValueError):  # Python can not hold the value
        value = spelled = raw
    if value in items.values:
        return None
    return SeenItems(items.begun, items.texts | {spelled}, items.values | {value})


def _decoded(key: bytes) -> str:
    if b"\\" not in key:  # the usual case, several times as fast
        return key.decode()
    return json.loads(b'"%s"' % key)


_MOST = 4096  # situations visited in one search
_UNITS = 3  # units of work for each
_NICE = b"abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ _"
_TENS = 10  # the size up to which all bytes of a range are tried, such as digits


class Detour(NamedTuple):
    """A text that leads to a new key or item, and the situation after it."""

    text: bytes
    state: State
    keys: Keys


class Uniqueness:
    """Unique keys and distinct items in the texts of one grammar."""

    def __init__(self, parser: Parser, meter: Meter):
        self._parser, self._meter = parser, meter
        self.distinct = bool(parser.network.distinct)  # some arrays have distinct items

    def after(self, state: State, keys: Keys, piece: bytes) -> Keys | None:
        """Return `keys` after `piece`, read at `state`; None if a key or an item comes twice."""
        if not self.distinct or b"[" not in piece:
            return keys.after(piece)

        def is_distinct(place: int) -> bool:
            before = self._parser.after(state, 0, piece[:place]) if place else state
            return before is not None and self._opens_distinct(before)

        return keys.after(piece, is_distinct)

    def detour(self, state: State, keys: Keys) -> Detour | None:
        """Return the detour from `state` with the fewest bytes to the end; None if none is found.

        After it, each of `keys.at_risk` has a new key or item, or is closed.
        """
        risks = keys.at_risk
        numbers = count(0, -1)  # breaks ties: the latest is visited first
        heap = [(state.cost or 0, next(numbers), b"", state, keys)]
        seen = {(state, keys)}
        for _ in range(_MOST):
            if not heap:
                return None
            _, _, text, at, seen_keys = heapq.heappop(heap)
            self._meter.add(_UNITS)
            now = seen_keys.at_risk
            if all(now.get(place, maxsize) > held for place, held in risks.items()):
                return Detour(text, at, seen_keys)
            taken = {rest[:1] for rest in seen_keys.taken_continuations}
            for byte in self._bytes(at, seen_keys, taken):
                onward = self._parser.after_byte(at, byte)
                if onward is None or onward.cost is None:
                    continue
                piece = bytes([byte])
                after = self.after(at, seen_keys, piece)
                if after is not None and (onward, after) not in seen:
                    seen.add((onward, after))
                    cost = len(text) + 1 + onward.cost
                    heapq.heappush(heap, (cost, next(numbers), text + piece, onward, after))
        return None

    def _opens_distinct(self, state: State) -> bool:
        """Whether an array opened at `state` may be one with distinct items."""
        network, scanners = self._parser.network, self._parser.scanners
        return any(
            thread.onward.state in network.distinct
            for thread in state.threads
            for low, high, _ in scanners[thread.terminal].moves(thread.at)
            if low <= ord("[") <= high
        )

    def _bytes(self, state: State, keys: Keys, taken: set[bytes]) -> Iterator[int]:
        """Yield bytes that may follow: of each range, those in `taken` and one other."""
        for low, high in self._parser.ranges(state):
            if not keys.string and high - low < _TENS:
                yield from range(low, high + 1)
                continue
            yield from (rest[0] for rest in taken if rest and low <= rest[0] <= high)
            others = (byte for byte in (*_NICE, *range(low, high + 1)) if low <= byte <= high)
            other = next((byte for byte in others if bytes([byte]) not in taken), None)
            if other is not None:
                yield other


_MOST_REPEATED = 512  # detours in one text
_AT_ONCE = 256  # bytes read before the shortest text is computed anew

TextParts = list[bytes | int]  # bytes, and control tokens by their ids


class UniqueText:
    """A short text from one state to the end, without repeated keys and distinct items."""

    def __init__(
        self,
        parser: Parser,
        uniqueness: Uniqueness,
        detour: Callable[[State, Keys], Detour | None],
        meter: Meter,
        begin: tuple[State, Keys],
    ):
        """`detour` is `Uniqueness.detour`, or a cache of it."""
        self._parser, self._uniqueness, self._meter = parser, uniqueness, meter
        self._detour = detour
        self._parts, self._text = TextParts(), bytearray()  # `_text` comes after `_parts`
        self._state, self._keys = begin
        # The start of a key or an item that may be a repetition: its place in `_text`.
        self._begun: tuple[int, State, Keys] = (0, *begin)
        self._detours, self._impossible = 0, False

    def written(self, most: int) -> TextParts | None:
        """Return the text, or at least its first `most` bytes; None if no text is found.

        Raises `Unfinished`; a second call continues the work.
        """
        while self._state.cost and len(self._text) < most and not self._impossible:
            self._meter.spend(1 + min(most, self._state.cost, _AT_ONCE) // 4)
            for symbol in _symbols(self._parser.completion(self._state, _AT_ONCE)):
                if not self._read(symbol):
                    break
        return None if self._impossible else [*self._parts, bytes(self._text)]

    def _read(self, symbol: bytes | int) -> bool:
        """Write a byte or a control token. False if the rest has to be computed anew."""
        if isinstance(symbol, int):
            onward, after = self._parser.after(self._state, symbol, b""), self._keys
        else:
            onward = self._parser.after_byte(self._state, symbol[0])
            after = self._uniqueness.after(self._state, self._keys, symbol)
        if onward is None or onward.cost is None:
            self._impossible = True
            return False
        if after is None:
            self._take_detour()
            return False
        if isinstance(symbol, int):
            self._parts += [bytes(self._text), symbol]
            self._text.clear()
        else:
            self._text += symbol
        if not self._keys.at_risk or not self._text:
            self._begun = len(self._text), onward, after
        self._state, self._keys = onward, after
        return True

    def _take_detour(self) -> None:
        """Replace the repeated key or item by a detour from its start."""
        place, state, keys = self._begun
        detour = self._detour(state, keys)
        self._detours += 1
        if detour is None or self._detours > _MOST_REPEATED:
            self._impossible = True
            return
        self._text[place:], self._state, self._keys = detour
        self._begun = len(self._text), detour.state, detour.keys


def _symbols(parts: TextParts) -> Iterator[bytes | int]:
    """Yield the bytes of a text, one by one, and its control tokens."""
    for part in parts:
        yield from (part,) if isinstance(part, int) else (bytes([byte]) for byte in part)
