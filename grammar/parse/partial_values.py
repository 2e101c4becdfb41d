"""Beginnings of JSON values, and whether their text may continue to a given value.

JSON values are equal whatever the order of keys and the spelling of numbers and strings.
"""

import json
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from dlm.grammar.json_escapes import Beginning
from dlm.grammar.json_scanner import CHARACTERS, SCALAR, STRING, STRING_END, JsonScanner

_NUMBER_BYTES = b"0123456789-"


def hashable(item: Any) -> Hashable:
    """Return a hashable value, equal for equal JSON values only. Numbers have to be `Decimal`."""
    match item:
        case Decimal():
            sign, digits, exponent = item.as_tuple()
            plain = "".join(map(str, digits)).rstrip("0")
            zeros = len(digits) - len(plain)
            return ("number", sign, plain, int(exponent) + zeros) if plain.strip("0") else "zero"
        case list():
            return ("array", *map(hashable, item))
        case dict():
            return ("object", frozenset((key, hashable(member)) for key, member in item.items()))
        case str():
            return ("string", item)
    return ("literal", item)


@dataclass
class _Open:
    """An array or an object that is not closed yet."""

    kind: str
    children: list[Any] = field(default_factory=list)  # values; pairs of key and value
    key: str | None = None  # the key whose value is next, or is begun
    ended: bool = False  # a child has ended: a comma or the end is next


class Partial:
    """The beginning of an array or an object, without white space, its strings in the canonical
    spelling."""

    def __init__(self, text: bytes, escape: bytes):
        """`escape` is the beginning of an escape after `text`, in which its last string breaks off;
        empty for none."""
        self._open: list[_Open] = []
        begin, tail = 0, b""
        for kind, lexeme, at in JsonScanner().feed(text):
            whole = at + len(lexeme) < len(text) or lexeme in (b"true", b"false", b"null")
            if kind is STRING or (kind is SCALAR and not whole):
                begin, tail = at, text[at:]
            elif kind is STRING_END:
                tail = b""
                self._read(text[begin : at + 1])
            elif kind is not CHARACTERS:
                self._read(lexeme)
        self._tail = Beginning(tail, escape)  # the string, number or literal that has begun

    def continuations(self, value: Hashable) -> list[bytes]:
        """Return continuations of the text to `value`, each up to the end of one JSON token.

        `hashable` returned `value`. None are left if the text cannot be completed to equal it.
        """
        try:
            return [*self._continuations(0, value)]
        except RecursionError:  # Python can not hold the value
            return []

    def _read(self, token: bytes) -> None:
        top = self._open[-1] if self._open else _Open("array")
        match token:
            case b"[" | b"{":
                self._open.append(_Open("array" if token == b"[" else "object"))
            case b"]" | b"}":
                children = self._open.pop().children
                closed = (top.kind, *children) if token == b"]" else (top.kind, frozenset(children))
                self._add(closed)
            case b",":
                top.ended = False
            case b":":
                pass
            case _ if token[:1] == b'"' and top.kind == "object" and top.key is None:
                top.key = json.loads(token)
            case _:
                self._add(_value_of(token))

    def _add(self, value: Hashable) -> None:
        if self._open:
            top = self._open[-1]
            top.children.append((top.key, value) if top.kind == "object" else value)
            top.key, top.ended = None, True

    def _continuations(self, depth: int, value: Hashable) -> Iterator[bytes]:
        if depth == len(self._open):
            yield from _rests(self._tail, value)
            return
        container = self._open[depth]
        if not isinstance(value, tuple) or value[0] != container.kind:
            return
        done = len(container.children)
        if container.kind == "array":
            items = value[1:]
            if items[:done] != tuple(container.children):
                return
            if container.ended:
                yield b"]" if len(items) == done else b","
            elif done < len(items):
                yield from self._continuations(depth + 1, items[done])
            elif not items and depth + 1 == len(self._open) and not self._tail.text:
                yield b"]"
            return
        pairs: Any = value[1]
        if not all(pair in pairs for pair in container.children):
            return
        if container.ended:
            yield b"}" if len(pairs) == done else b","
            return
        if not pairs and container.key is None and not self._tail.text:
            yield b"}"
        for key, inner in pairs:
            if container.key is None and (key, inner) not in container.children:
                yield from _rests(self._tail, ("string", key))
            elif container.key == key:
                yield from self._continuations(depth + 1, inner)


def _value_of(token: bytes) -> Hashable:
    """Return the value of a string, a number or a literal; `token` itself if Python has none."""
    try:
        return hashable(json.loads(token, parse_float=Decimal, parse_int=Decimal))
    except (ArithmeticError, ValueError):
        return token


def _rests(tail: Beginning, value: Hashable) -> Iterator[bytes]:
    """Yield the rests of a token of `value` that begins with `tail`."""
    first = tail.text[:1]
    kind, *contents = value if isinstance(value, tuple) else ("number",)
    if kind == "string" and first in (b"", b'"'):
        text = json.dumps(contents[0], ensure_ascii=False).encode(errors="surrogatepass")
        yield from tail.rests(text)
    elif kind == "number" and (not first or first in _NUMBER_BYTES):
        yield b""
    elif kind == "literal":
        yield from tail.rests(json.dumps(contents[0]).encode())
    elif not first and kind in ("array", "object"):
        yield b"[" if kind == "array" else b"{"
