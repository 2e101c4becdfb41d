"""Keys of JSON objects, and items of arrays with distinct items: neither may come twice.

Rules can not forbid a repetition of keys that they do not name, and parsers disagree about keys
that come twice (RFC 8259, section 4). So `Keys` follows the text beside the parser. It knows JSON's
tokens, and no grammar: the caller reports which arrays have distinct items.

A repeated key or item is refused at its end. That may be too late: if all keys of three letters are
taken, no other end is left.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, UInt32

from dlm.grammar.json_escapes import Beginning, beginning, unescaped
from dlm.grammar.json_scanner import CHARACTERS, SCALAR, STRING, STRING_END, lexemes
from dlm.grammar.parse.growing_sets import SETS, GrowingSet, with_element, with_part
from dlm.grammar.parse.partial_values import Partial, hashable
from dlm.grammar.vocabulary.quoted import QuotedTokens

_ENDS_STRING, _STRUCTURE = frozenset(b'"\\'), frozenset(b'",{}[]')  # or begins an escape
_NUMBER = b"0123456789+-.eE"
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?')
_COMPARED = 4  # items that the current one is compared with, in the time to read one of its values
KEYS_BYTES, NAME_BYTES = 600, 75  # approximate memory of keys, and of each name or item in them
_NO_KEYS: GrowingSet[bytes] = frozenset()
_made = tuple.__new__  # of a named tuple, in two thirds of the time


@dataclass(frozen=True, slots=True)
class SeenItems:
    """The items of an open array that has to hold distinct items."""

    begun: int = 0  # the start of the current item in `Keys.text`
    # The items so far, in sorted parts, their strings in the canonical spelling. Only `values` is
    # compared.
    texts: tuple[tuple[bytes, ...], ...] = field(default=(), compare=False)
    values: GrowingSet[Hashable] = frozenset()  # their values, by `hashable`

    def texts_after(self, begun: bytes) -> Iterator[bytes]:
        """Yield the items that begin with `begun`."""
        for part in self.texts:
            place = bisect_left(part, begun)
            while place < len(part) and part[place].startswith(begun):
                yield part[place]
                place += 1


Container = GrowingSet[bytes] | SeenItems | None
"""The keys of an object, the items of an array with distinct items; None: another array."""


class Keys(NamedTuple):
    """The keys and items of a JSON text so far, their strings in the canonical spelling: each
    escape is read once."""

    open: tuple[Container, ...] = ()
    key: bytes | None = None  # the beginning of the key that is being read
    expected: bool = False  # the next string is a key
    string: bool = False  # within a string
    # The escape that the string breaks off in, of which `key` and `text` have nothing. Elsewhere
    # than in a key or a distinct item, it is no more than a backslash.
    escape: bytes = b""
    text: bytes = b""  # from the outermost distinct item on, without white space

    def after(
        self, piece: bytes, is_distinct: Callable[[int], bool] | None = None
    ) -> "Keys | None":
        """Return the keys after `piece`; None if it ends a key or a distinct item a second time.

        `is_distinct(place)` is whether the array opened by byte `place` of `piece` has distinct
        items; None: no array has.
        """
        open_, key, expected, string, escape, text = self
        watched = SeenItems in map(type, open_)  # `self.watched`, without a call
        plain = (_ENDS_STRING if string else _STRUCTURE).isdisjoint(piece)
        if plain and not (watched or escape):  # most tokens: within a string or a number
            if key is None:
                return self
            return _made(Keys, (open_, key + piece, expected, True, b"", text))
        parts, string, escaped = lexemes(piece, string, escape.endswith(b"\\"))
        for kind, lexeme, place in parts:
            if kind is STRING:
                key = b"" if expected else None
                text += lexeme if watched else b""
            elif kind is CHARACTERS:
                if watched or key is not None:
                    lexeme, escape = beginning(escape + lexeme)
                    key = None if key is None else key + lexeme
                    text += lexeme if watched else b""
            elif kind is STRING_END:
                half, escape = escape, b""  # of a character
                text += half + lexeme if watched else b""
                if key is not None:
                    key, names = key + unescaped(half) if half else key, open_[-1]
                    if not isinstance(names, SETS) or key in names:
                        return None
                    open_, key = (*open_[:-1], with_element(names, key)), None
                    expected = False
                elif watched and _repeats(open_, text):
                    return None
            elif kind is SCALAR or lexeme == b":":
                text += lexeme if watched else b""
            elif lexeme == b"{" or lexeme == b"[":
                text += lexeme if watched else b""
                expected = lexeme == b"{"
                distinct = not expected and is_distinct is not None and is_distinct(place)
                watched = watched or distinct
                open_ += (SeenItems(len(text)) if distinct else _NO_KEYS if expected else None,)
            else:  # , ] or }
                top = open_[-1] if open_ else None
                if isinstance(top, SeenItems) and (lexeme == b"," or len(text) > top.begun):
                    top = _with_item(top, text)
                    if top is None:
                        return None
                expected = lexeme == b"," and isinstance(top, SETS)
                if lexeme != b",":
                    open_ = open_[:-1]
                    watched = SeenItems in map(type, open_)
                    text = text + lexeme if watched else b""
                    if watched and _repeats(open_, text):
                        return None
                elif not isinstance(top, SeenItems):
                    text += lexeme if watched else b""
                else:  # of the outermost array, no earlier item's text is needed
                    text = text + lexeme if top.begun else b""
                    open_ = (*open_[:-1], SeenItems(len(text), top.texts, top.values))
        if key is None and not watched:
            escape = b"\\" if escaped else b""
        return _made(Keys, (open_, key, expected, string, escape, text))

    @property
    def nbytes(self) -> int:
        """Approximate memory, without the texts of names and items, which other keys hold too."""
        names = sum(
            len(each.values if isinstance(each, SeenItems) else each) for each in self.open if each
        )
        return KEYS_BYTES + NAME_BYTES * names + len(self.text)

    def unchanged_by(self, tokens: QuotedTokens) -> Bool[np.ndarray, " tokens"] | None:
        """Return for each token whether `after` returns the same keys; None: no token may."""
        if self.watched or self.escape or self.key is not None:
            return None
        return tokens.within if self.string else tokens.outside

    def suspects(self, tokens: QuotedTokens) -> set[int]:
        """Return a superset of the tokens that `after` refuses for their keys."""
        suspects, holding = {*tokens.doubling}, tokens.holding
        for names in self.open:
            if isinstance(names, SETS) and not holding.keys().isdisjoint(names):
                for name in names:
                    suspects.update(holding.get(name, ()))
        key = self.key
        if key is None:
            return suspects
        if self.escape:
            may_repeat = next(self._rests_of_keys(), None) is not None
            return suspects | (tokens.quotes if may_repeat else tokens.several)
        suspects.update(tokens.repeating.get(key, ()))
        for name in self._names():
            if name.startswith(key):
                suspects.update(tokens.ending.get(name[len(key) :], ()))
        return suspects

    def item_suspects(self, tokens: QuotedTokens) -> UInt32[np.ndarray, " words"]:
        """Return a superset of the tokens that may end a repeated item, as packed bits.

        Beginnings of `taken_continuations` are not included, nor are tokens that spell one of them,
        nor those that go on with `escape`. Outside of strings, tokens that lead only to a
        repetition are included, unless they are beginnings of a string.
        """
        if not self.watched:
            return tokens.packed["opening"]
        if self.string:
            # The end of a string that no earlier item has makes a new item.
            return tokens.packed["joining"]
        return tokens.packed["any" if self.text[-1:].isdigit() else "structural"]

    @property
    def compared(self) -> int:
        """The earlier arrays and objects that the current items are compared with, and the values
        in these items, which are read for it: each takes the time of several comparisons."""
        count = 0
        for items in self.open:
            if isinstance(items, SeenItems) and items.values:
                item_text = self.text[items.begun :]
                if item_text[:1] in (b"[", b"{"):
                    values = _STRINGS.sub(b"", item_text).count(b",")
                    count += len(items.values) + _COMPARED * values
        return count

    @property
    def watched(self) -> bool:
        """Whether an array is open whose items have to be distinct."""
        return SeenItems in map(type, self.open)  # a third of the time of `isinstance` for each

    @property
    def taken_continuations(self) -> list[bytes]:
        """Continuations of the text that would repeat a key, with its closing quote, or an item.

        Within a string, those that end with a quote end it. Each goes on with `escape` in lower
        case, while a token may be in either. Other spellings are not included.
        """
        continuations: list[bytes] = []
        if self.may_repeat_key:
            opening = b'"' * (self.key is None)
            continuations += [opening + ending for ending in self._rests_of_keys()]
        for items in self.open:
            if not isinstance(items, SeenItems) or not items.values:
                continue
            item_text = self.text[items.begun :]
            begun = Beginning(item_text, self.escape)
            for text in items.texts_after(item_text):
                continuations += begun.rests(text)
            if item_text[:1] in (b"[", b"{"):
                partial = Partial(item_text, self.escape)
                for value in items.values:
                    continuations += filter(None, partial.continuations(value))
        return continuations

    @property
    def may_repeat_key(self) -> bool:
        """Whether the current key, or the one that must come next, may repeat another key."""
        return self._at_key and next(self._rests_of_keys(), None) is not None

    def has_new_key(self, rests: Iterable[bytes]) -> bool:
        """Whether one of `rests` begins with the rest of a key that its object does not have yet.

        Keys with escapes are not looked at, nor any while an array of distinct items is open.
        """
        if self.escape or self.watched or not self._at_key:
            return False
        names, begun = self._names(), self.key is None
        for rest in rests:
            if begun and rest[:1] != b'"':
                continue
            name, quote, _ = rest[begun:].partition(b'"')
            if quote and b"\\" not in name and (self.key or b"") + name not in names:
                return True
        return False

    @property
    def rivals(self) -> int:
        """At most how many strings would let the current one, or the one that comes next, end in a
        repeated key or item. Any other string makes all of them new."""
        count = len(self._names()) if self._at_key else 0
        for items in self.open:
            if isinstance(items, SeenItems):
                texts = chain.from_iterable(items.texts) if self._at_key else ()
                keys = sum(text.count(b'":') for text in texts)
                count += max(len(items.values), keys)
        return count

    @property
    def _at_key(self) -> bool:
        return self.key is not None or (self.expected and not self.string)

    def _rests_of_keys(self) -> Iterator[bytes]:
        """Yield the rests of the object's keys that begin as the current one does, with quotes."""
        key = self.key or b""
        for name in self._names():
            if name.startswith(key):
                yield from Beginning(key, self.escape).rests(name + b'"')

    @property
    def at_risk(self) -> dict[int, int]:
        """Open objects and arrays whose next key or item may be a repetition.

        Maps their indices in `open` to the number of keys or items that they hold.
        """
        counts = {
            place: len(container.values)
            for place, container in enumerate(self.open)
            if isinstance(container, SeenItems) and self._may_repeat(container)
        }
        if self.may_repeat_key:
            counts[len(self.open) - 1] = len(self._names())
        return counts

    def _may_repeat(self, items: SeenItems) -> bool:
        item_text = self.text[items.begun :]
        if not items.values:
            return False
        if items is self.open[-1] and not self.string and item_text[-1:] in (b'"', b"]", b"}"):
            return False  # the item has ended, and is new
        # a number has many spellings: it is compared at its end
        sure = item_text if self.string else item_text.rstrip(_NUMBER)
        if next(items.texts_after(sure), None) is not None:
            return True
        return item_text[:1] in (b"[", b"{") and any(
            map(Partial(item_text, self.escape).continuations, items.values)
        )

    def _names(self) -> GrowingSet[bytes]:
        """The keys of the innermost object."""
        top = self.open[-1] if self.open else None
        return top if isinstance(top, SETS) else _NO_KEYS


def _repeats(open_: tuple[Container, ...], text: bytes) -> bool:
    """Whether the string, array or object that ends `text` is a repeated item."""
    top = open_[-1] if open_ else None
    return isinstance(top, SeenItems) and bool(top.values) and _with_item(top, text) is None


def _with_item(items: SeenItems, text: bytes) -> SeenItems | None:
    """Return `items` with the item that ends `text`; None if that is a repetition."""
    raw = text[items.begun :]
    try:
        item = json.loads(raw, parse_float=Decimal, parse_int=Decimal)
        value = hashable(item)
    except (RecursionError, ArithmeticError, ValueError):  # Python can not hold the value
        value = raw
    if value in items.values:
        return None
    texts = with_part(items.texts, raw, lambda texts: tuple(sorted(texts)))
    return SeenItems(items.begun, texts, with_element(items.values, value))
