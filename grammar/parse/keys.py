"""What of a JSON text may not repeat: keys of its objects, and items of some of its arrays.

Rules cannot say it of what they do not name, and readers differ in what they make of a key that
comes twice (RFC 8259, section 4). So it is watched beside the parser. Knows JSON's tokens, and no
grammar: which arrays are of distinct items has to be told.

How a key or an item that is begun can become one that is not there yet.

A key or an item that is there already is refused where it ends. Where nothing but its end could
follow, that is too late: of keys of three letters, or items of ten values, there may be no other.
So no token is allowed after which there is no way to something new; and a completion that would
repeat something goes this way instead.

A short text to the end in which no key and no distinct item comes twice.

It is the grammar's shortest. Where that repeats a key or an item, the text goes back to where this
was begun, and takes a way to another one (`apart.py`).
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

from dlm.grammar.json_text import QuotedTokens
from dlm.grammar.parse.earley import Parser, State
from dlm.grammar.parse.limits import Meter
from dlm.grammar.parse.shared_masks import Partial, hashable

_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_OPEN, _CLOSE = b"{[", b"}]"
_SPACE = b" \t\r\n"
_NUMBER = b"0123456789+-.eE"
_ESCAPED = re.compile(r'["\\/\x00-\x1f\ud800-\udfff]')  # in a key: may be spelled by short escapes


@dataclass(frozen=True, slots=True)
class SeenItems:
    """An open array whose items are distinct."""

    begun: int = 0  # where the item that is being read begins in `Keys.text`
    texts: frozenset[bytes] = frozenset()  # the items so far, in their plainest spelling
    values: frozenset[Hashable] = frozenset()  # the same, equal where their values are


@dataclass(frozen=True, slots=True)
class Keys:
    """Where a JSON text is. Never changed."""

    open: tuple[frozenset[str] | SeenItems | None, ...] = ()  # keys of objects; None: any array
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
        return any(isinstance(each, SeenItems) for each in self.open)

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
        return any(self._may_repeat(each) for each in self.open if isinstance(each, SeenItems))

    @property
    def at_risk(self) -> dict[int, int]:
        """The open objects and arrays of which a key or an item may still become one that is there.

        By their places in `open`, with how many they hold.
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
        return any(isinstance(each, SeenItems) or bool(each) for each in self.open)

    def _held(self) -> frozenset[str]:
        """The keys of the innermost object."""
        top = self.open[-1] if self.open else None
        return top if isinstance(top, frozenset) else frozenset()

    def _begun_items(self) -> Iterator[tuple[bytes, SeenItems]]:
        """What there is of an item, and the array that has others."""
        for each in self.open:
            if isinstance(each, SeenItems) and each.texts:
                yield self.text[each.begun :], each


def _repeats(open_: tuple[frozenset[str] | SeenItems | None, ...], text: bytearray) -> bool:
    """Whether a string, an array or an object that has just ended is an item that was there."""
    top = open_[-1] if open_ else None
    return isinstance(top, SeenItems) and bool(top.texts) and _with_item(top, text) is None


def _with_item(items: SeenItems, text: bytearray) -> SeenItems | None:
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
    return SeenItems(items.begun, items.texts | {spelled}, items.values | {value})


def _begun(items: SeenItems, begun: int) -> SeenItems:
    return SeenItems(begun, items.texts, items.values)


def _decoded(key: bytes) -> str:
    if b"\\" not in key:  # nearly all: several times as fast
        return key.decode()
    return json.loads(b'"%s"' % key)


_MOST = 4096  # places that are looked at
_UNITS = 3  # of work for one
_NICE = b"abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ _"
_TENS = 10  # bytes of a range that are all tried: digits may spell one number in many ways


class Way(NamedTuple):
    """A text that makes the difference, and where it leads."""

    text: bytes
    state: State
    keys: Keys


class Apart:
    """Ways to what is not there yet, in one grammar."""

    def __init__(self, parser: Parser, meter: Meter):
        self._parser, self._meter = parser, meter
        self.distinct = bool(parser.network.distinct)

    def after(self, state: State, keys: Keys, piece: bytes) -> Keys | None:
        """`keys` after `piece`, which is read at `state`; None where something comes twice."""
        if not self.distinct or b"[" not in piece:
            return keys.after(piece)

        def is_distinct(place: int) -> bool:
            before = self._parser.after(state, 0, piece[:place]) if place else state
            return before is not None and self._opens_distinct(before)

        return keys.after(piece, is_distinct)

    def way(self, state: State, keys: Keys) -> Way | None:
        """A way from `state` to where what is at risk is new; None: none is found.

        It is of the fewest bytes to the end of the text.
        """
        risks = keys.at_risk
        numbers = count(0, -1)  # of those that are as far, the last one is followed
        heap = [(state.cost or 0, next(numbers), b"", state, keys)]
        seen = {(state, keys)}
        for _ in range(_MOST):
            if not heap:
                return None
            _, _, text, at, known = heapq.heappop(heap)
            self._meter.add(_UNITS)
            now = known.at_risk
            if all(now.get(place, maxsize) > held for place, held in risks.items()):
                return Way(text, at, known)
            taken = {rest[:1] for rest in known.taken}
            for byte in self._bytes(at, known, taken):
                onward = self._parser.after_byte(at, byte)
                if onward is None or onward.cost is None:
                    continue
                piece = bytes([byte])
                after = self.after(at, known, piece)
                if after is not None and (onward, after) not in seen:
                    seen.add((onward, after))
                    cost = len(text) + 1 + onward.cost
                    heapq.heappush(heap, (cost, next(numbers), text + piece, onward, after))
        return None

    def _opens_distinct(self, state: State) -> bool:
        """An array that is opened at `state` is, or may be, one of distinct items."""
        network, scanners = self._parser.network, self._parser.scanners
        return any(
            thread.onward.state in network.distinct
            for thread in state.threads
            for low, high, _ in scanners[thread.terminal].moves(thread.at)
            if low <= ord("[") <= high
        )

    def _bytes(self, state: State, keys: Keys, taken: set[bytes]) -> Iterator[int]:
        """Bytes that may follow: of each range, those of `taken` and another one."""
        for low, high in self._parser.ranges(state):
            if not keys.string and high - low < _TENS:
                yield from range(low, high + 1)
                continue
            yield from (rest[0] for rest in taken if rest and low <= rest[0] <= high)
            others = (byte for byte in (*_NICE, *range(low, high + 1)) if low <= byte <= high)
            other = next((byte for byte in others if bytes([byte]) not in taken), None)
            if other is not None:
                yield other


_MOST_REPEATED = 512  # keys and items of one text that have to become others
_AT_ONCE = 256  # bytes that are read before the shortest text from there is asked for again

TextParts = list[bytes | int]  # bytes, and control tokens by their ids


class ApartText:
    """The text from one state on, written as far as it is asked for.

    Where work runs out in the middle, `Unfinished` is raised, and asking again goes on.
    """

    def __init__(
        self,
        parser: Parser,
        apart: Apart,
        way: Callable[[State, Keys], Way | None],
        meter: Meter,
        begin: tuple[State, Keys],
    ):
        """`way` is `Apart.way`, remembered."""
        self._parser, self._apart, self._way, self._meter = parser, apart, way, meter
        self._parts, self._text = TextParts(), bytearray()  # what is written: the text comes last
        self._state, self._keys = begin
        # Where a key or an item was begun that may be there already: a place in the text.
        self._begun: tuple[int, State, Keys] = (0, *begin)
        self._repeated, self._impossible = 0, False

    def written(self, most: int) -> TextParts | None:
        """At least the first `most` bytes, or all of it; None: there is none, or none is found."""
        while self._state.cost and len(self._text) < most and not self._impossible:
            self._meter.spend(1 + min(most, self._state.cost, _AT_ONCE) // 4)
            for symbol in _symbols(self._parser.completion(self._state, _AT_ONCE)):
                if not self._read(symbol):
                    break
        return None if self._impossible else [*self._parts, bytes(self._text)]

    def _read(self, symbol: bytes | int) -> bool:
        """Write a byte or a control token; False: the shortest text from here is another now."""
        if isinstance(symbol, int):
            onward, after = self._parser.after(self._state, symbol, b""), self._keys
        else:
            onward = self._parser.after_byte(self._state, symbol[0])
            after = self._apart.after(self._state, self._keys, symbol)
        if onward is None or onward.cost is None:
            self._impossible = True
            return False
        if after is None:
            self._become_another()
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

    def _become_another(self) -> None:
        place, before, held = self._begun
        way = self._way(before, held)
        self._repeated += 1
        if way is None or self._repeated > _MOST_REPEATED:
            self._impossible = True
            return
        self._text[place:] = way.text
        self._state, self._keys = way.state, way.keys
        self._begun = len(self._text), way.state, way.keys


def _symbols(parts: TextParts) -> Iterator[bytes | int]:
    """The bytes of a text, one by one, and its control tokens."""
    for part in parts:
        yield from (part,) if isinstance(part, int) else (bytes([byte]) for byte in part)
