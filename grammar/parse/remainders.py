"""The shortest text from a parser state to the end, and the fewest tokens that spell it.

A `Remainder` is a chain: one piece of the text, then the remainder after it. States share the ends
of their chains, so each piece is counted once. Tokens are counted from the right and across the
boundaries of pieces, so the count is exact for the text.

The shortest text in bytes may not be the shortest in tokens: "ought" may be one token, and "zqj"
three. `FewestTokens` searches for a text of fewer tokens, breadth first by tokens. It gives up
after a limit, for example inside a free string.

If keys are free or items distinct, a token is allowed only if a new key or item can still be
reached after it. `Uniqueness` searches for a `Detour`, a text that leads there. `UniqueText` is the
grammar's shortest text to the end, with a detour in place of each repetition.
"""

import heapq
import itertools
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from sys import maxsize
from typing import NamedTuple

from dlm.grammar.errors import Unfinished
from dlm.grammar.limits import Meter
from dlm.grammar.parse.earley import Item, Parser, State, Thread
from dlm.grammar.parse.keys import Keys
from dlm.grammar.parse.network import RuleEdge, TerminalEdge, TokenEdge
from dlm.grammar.vocabulary import Vocabulary

NEVER = 1 << 30  # tokens: the vocabulary does not spell the text
_PIECE = 64  # bytes: longer texts are counted in pieces, which are kept if work runs out
_EACH = 2  # units of work for each piece
_NODES = 16  # trie nodes visited for a unit of work
_MOST = 128 << 20  # bytes of memory, before all is forgotten


class Counted(NamedTuple):
    """Fewest tokens from each byte of a piece of text. Equal pieces in equal contexts share it."""

    counts: array  # by byte, then for the bytes after it; less the remainder's `base`, or `NEVER`
    nodes: array  # by byte of the piece: the trie node of the first token
    visited: int  # trie nodes


_END = array("i", [0])  # no tokens are left


def count(text: bytes, follows: bytes, after: array, vocabulary: Vocabulary) -> Counted:
    """Count the fewest tokens from each byte of `text`, from right to left.

    `follows` holds the bytes after `text` that a token may reach into. `after` holds the counts
    from each of them and from their end, less a number that all of them share.
    """
    trie, held = vocabulary.trie, vocabulary.trie.token_count.data
    window, size, visited = text + follows, len(text), 0
    counts, nodes = array("i", [NEVER]) * size + after, array("i", [0]) * size
    for start in range(size - 1, -1, -1):
        best, end = NEVER, start
        for end, node in enumerate(trie.along(window, start), start + 1):
            if counts[end] < best and held[node]:
                best, nodes[start] = counts[end], node
        counts[start] = min(NEVER, best + 1)
        visited += 1 + end - start
    return Counted(counts, nodes, visited)


class Remainder:
    """A piece of text, or one control token, with the remainder after it. Immutable."""

    __slots__ = ("after", "base", "control", "counted", "text", "window")

    def __init__(
        self,
        text: bytes,
        after: "Remainder | None",
        window: bytes,
        counted: Counted,
        base: int,
        control: int | None = None,
    ):
        """`after` follows the piece; None: the text ends. `control` is a token instead of `text`.

        `window` holds the piece and the bytes after it that a token of the piece may reach into.
        `base` is to be added to all counts of `counted`.
        """
        self.text, self.after, self.control = text, after, control
        self.window, self.counted, self.base = window, counted, base

    @property
    def tokens(self) -> int:
        """The fewest tokens that spell the whole remainder; `NEVER` if none do."""
        first = self.counted.counts[0]
        return first if first == NEVER else min(NEVER, self.base + first)

    @property
    def nbytes(self) -> int:
        """Approximate memory of this link of the chain, without its counts."""
        return 300 + len(self.window) + len(self.text)

    def spelled(self, vocabulary: Vocabulary, most: int) -> tuple[list[int], bool]:
        """Return the tokens, or the first `most` of them, and whether these are all."""
        trie = vocabulary.trie
        here: Remainder | None = self
        tokens: list[int] = []
        at = 0
        while True:
            while here is not None and here.control is None and at >= len(here.text):
                here, at = here.after, at - len(here.text)
            if here is None or len(tokens) >= most:
                return tokens, here is None
            if here.control is not None:
                tokens.append(here.control)
                here = here.after
                continue
            node = here.counted.nodes[at]
            token = int(trie.tokens[trie.token_first[node]])
            tokens.append(token)
            at += len(vocabulary.pieces[token])


class Remainders:
    """The remainders of one grammar's states, built at their first look-up."""

    def __init__(self, parser: Parser, vocabulary: Vocabulary, meter: Meter):
        self._parser, self._vocabulary, self._meter = parser, vocabulary, meter
        self._network = parser.network
        self._by_item: dict[Item, Remainder | None] = {}
        # by a network state, or a rule and its rounds, and by the remainder after it
        self._by_path: dict[tuple[int | tuple[int, int], Remainder | None], Remainder | None] = {}
        self._rounds: dict[tuple[int, Remainder | None], int] = {}  # the most that are known
        self._by_text: dict[tuple[bytes, Remainder | None], Remainder] = {}
        # by a piece, the bytes after it, and their counts
        self._counted: dict[tuple[bytes, bytes, bytes], Counted] = {}
        # the text at which work ran out, the remainder after it, and its part that is left
        self._unfinished: tuple[bytes, Remainder | None, int, Remainder | None] | None = None
        self.nbytes, self._begun = 0, False

    def of(self, state: State) -> Remainder | None:
        """Return the shortest text from `state` to the end; None if the text may end here.

        `state` must reach the end. Raises `Unfinished`; a second call continues the work.
        """
        if self.nbytes > _MOST and not self._begun:
            self._clear()
        self._begun, best = True, state.best  # clearing unfinished work would repeat it forever
        if isinstance(best, Thread):
            scanner = self._parser.scanners[best.terminal]
            text = scanner.completion(best.at, best.needed, best.remaining)
            found = self._piece(text, self._of_item(best.onward))
        else:
            found = None if best is None else self._of_item(best)
        self._begun = False
        return found

    def tokens(self, state: State) -> int:
        """Return the fewest tokens of that text; `NEVER` if there is none."""
        if state.tokens is None:
            if state.cost is None:
                state.tokens = NEVER
            else:
                remainder = self.of(state)
                state.tokens = 0 if remainder is None else remainder.tokens
        return state.tokens

    def _of_item(self, item: Item) -> Remainder | None:
        path: list[Item] = []
        at: Item | None = item
        while at is not None and at not in self._by_item:
            path.append(at)
            at = at.stack.best
        rest = None if at is None else self._by_item[at]
        for each in reversed(path):
            rest = self._by_item[each] = self._along(each.state, rest)
        return rest

    def _along(self, state: int, rest: Remainder | None) -> Remainder | None:
        """Return the shortest text from `state` to the end of its rule, with `rest` after it."""
        known, network = self._by_path, self._network
        wanted: list[tuple[int | tuple[int, int], Remainder | None]] = [(state, rest)]
        while wanted:
            key = place, after = wanted[-1]
            if key in known:
                wanted.pop()
                continue
            if isinstance(place, tuple):  # rounds of a rule, counted from the last one
                rule, rounds = place
                most = self._rounds.get((rule, after), 0)
                if most < rounds - 1:
                    wanted.append(((rule, most + 1), after))
                    continue
                fewer = after if rounds == 1 else known[(rule, rounds - 1), after]
                inner = network.start[rule], fewer
                if inner not in known:
                    wanted.append(inner)
                    continue
                known[key] = known[inner]
                self._rounds[rule, after] = max(most, rounds)
                continue
            edge = network.first_edge(place)
            if edge is None:
                known[key] = after
                continue
            onward = (edge.to, after)
            if onward not in known:
                wanted.append(onward)
                continue
            found = known[onward]
            match edge:
                case TerminalEdge(terminal, _, low, high):
                    scanner = self._parser.scanners[terminal]
                    found = self._piece(scanner.completion(scanner.start, low, high), found)
                case TokenEdge(ids):
                    self._meter.spend(1)
                    found = self._kept(self._named(min(ids), found))
                case RuleEdge(rule, _, low) if low and not network.nullable(rule):
                    repeated = ((rule, low), found)
                    if repeated not in known:
                        wanted.append(repeated)
                        continue
                    found = known[repeated]
            known[key] = found
        return known[state, rest]

    def _piece(self, text: bytes, rest: Remainder | None) -> Remainder | None:
        """Return the remainder of `text`, with `rest` after it."""
        end, found = len(text), rest
        if self._unfinished is not None and self._unfinished[:2] == (text, rest):
            _, _, end, found = self._unfinished
        try:
            while end > 0:  # from the end, since longer texts share these pieces
                begin = max(0, end - _PIECE)
                key = text[begin:end], found
                if key not in self._by_text:
                    self._meter.spend(_EACH)
                    self._by_text[key] = self._kept(self._spelled(*key))
                end, found = begin, self._by_text[key]
        except Unfinished:
            self._unfinished = text, rest, end, found
            raise
        return found

    def _spelled(self, text: bytes, after: Remainder | None) -> Remainder:
        """Return the remainder of one piece; equal pieces in equal contexts are counted once."""
        follows, counts, base = b"", _END, 0
        if after is not None:
            follows = after.window[: self._vocabulary.longest]
            counts, base = after.counted.counts[: len(follows) + 1], after.base
        least = min(counts)
        if 0 < least < NEVER:
            counts = array("i", [c if c == NEVER else c - least for c in counts])
            base += least
        key = text, follows, counts.tobytes()
        counted = self._counted.get(key)
        if counted is None:
            counted = self._counted[key] = count(text, follows, counts, self._vocabulary)
            self._meter.add(counted.visited // _NODES)
            self.nbytes += 400 + 4 * (2 * len(counted.counts) + len(counted.nodes))
        return Remainder(text, after, text + follows, counted, base)

    def _named(self, control: int, after: Remainder | None) -> Remainder:
        """Return the remainder of a control token, into which no text token reaches."""
        tokens = 1 + (0 if after is None else after.tokens)
        counts = array("i", [0 if tokens < NEVER else NEVER])
        return Remainder(b"", after, b"", Counted(counts, array("i"), 0), tokens, control)

    def _kept(self, remainder: Remainder) -> Remainder:
        self.nbytes += remainder.nbytes
        return remainder

    def _clear(self) -> None:
        self._by_item.clear()
        self._by_path.clear()
        self._by_text.clear()
        self._rounds.clear()
        self._counted.clear()
        self._unfinished = None
        self.nbytes = 0


_MOST_BYTES = 50_000  # read in one search
_BYTES = 12  # read for a unit of work
_SEVERAL = 64  # children of a node, beyond which only likely bytes are looked up

TokenPath = list[tuple[State, int]]  # tokens, each with the state before it


class FewestTokens:
    """A search for a text of the fewest tokens, from the first state of a grammar to an end."""

    def __init__(self, parser: Parser, vocabulary: Vocabulary, meter: Meter, most: int):
        """`most` is the largest number of tokens to try."""
        self._parser, self._meter = parser, meter
        self._trie, self._longest = vocabulary.trie, vocabulary.longest
        self._left, self._bytes_read = most, 0
        self._seen = {parser.start}
        self._level: deque[tuple[State, TokenPath]] = deque()  # states to visit, with their paths
        self._next: list[tuple[State, TokenPath]] = [(parser.start, [])]  # one token further
        self._found: dict[State, int] = {}  # states after the visited one, with their tokens
        self._todo: list[tuple[State, int]] = []  # states within tokens, with their trie nodes
        self._path: TokenPath | None = None

    def path(self) -> TokenPath:
        """Return the tokens of the text; empty if none was found within the limits.

        Raises `Unfinished`; a second call continues the search.
        """
        while self._path is None:
            if self._todo:
                self._read()
            elif self._level:
                self._leave()
            elif self._left and self._next:
                self._level, self._next = deque(self._next), []
                self._left -= 1
                self._todo = [(self._level[0][0], 0)]
            else:
                self._path = []
        return self._path

    def _read(self) -> None:
        """Read the tokens from the first state of the level, byte by byte."""
        trie, meter, todo = self._trie, self._meter, self._todo
        held = trie.token_count.data
        while todo:
            at, node = todo[-1]
            if not node:
                named = sorted(self._parser.named(at))
                after = {self._parser.after(at, token, b""): token for token in named}
                self._found = {state: token for state, token in after.items() if state is not None}
            if self._bytes_read >= _MOST_BYTES:
                todo.clear()
                return
            onward: list[tuple[State, int]] = []
            if count := trie.child_count(node):
                meter.spend(1)
                onward = self._onward(at, node)
                # Charged at the end: a search that runs out of work keeps what it has found.
                meter.add(count // _BYTES)
                self._bytes_read += count
            if held[node]:
                self._found.setdefault(at, int(trie.tokens[trie.token_first[node]]))
            todo.pop()
            todo += onward

    def _onward(self, at: State, node: int) -> list[tuple[State, int]]:
        """Return the states after each next byte, with the trie nodes there."""
        trie, parser, known = self._trie, self._parser, at.next
        children = trie.each_child(node)
        if trie.child_count(node) > _SEVERAL:
            scanners, likely = parser.scanners, set[int]()
            for thread in at.threads:
                for low, high, _ in scanners[thread.terminal].moves(thread.at):
                    likely.update(range(low, high + 1))
            if len(likely) <= _SEVERAL:
                children = trie.children_by(node, sorted(likely))
        onward: list[tuple[State, int]] = []
        for byte, child in children:
            after = known[byte] if byte in known else parser.after_byte(at, byte)
            if after is not None:
                onward.append((after, child))
        return onward

    def _leave(self) -> None:
        """Record the states that tokens lead to, and turn to the next state of the level."""
        here, path = self._level.popleft()
        for at, token in self._found.items():
            if at.cost == 0:
                self._path = [*path, (here, token)]
                return
            if at in self._seen or at.cost is None or at.cost > self._left * self._longest:
                continue
            self._seen.add(at)
            self._next.append((at, [*path, (here, token)]))
        if self._level:
            self._todo = [(self._level[0][0], 0)]


_MOST_SITUATIONS = 4096  # situations visited in one search
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
        numbers = itertools.count(0, -1)  # breaks ties: the latest is visited first
        heap = [(state.cost or 0, next(numbers), b"", state, keys)]
        seen = {(state, keys.plain)}  # escapes would multiply the spellings of each text
        for _ in range(_MOST_SITUATIONS):
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
                if after is not None and (onward, after.plain) not in seen:
                    seen.add((onward, after.plain))
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
