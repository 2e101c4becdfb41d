"""Scanners read a terminal byte by byte: raw UTF-8, or JSON strings with escapes.

States are built when they are reached. Between two characters, the state is the automaton's. Within
a character, it holds the characters that are still possible, so that beginnings with the same
future share a state. These are segments: intervals of numbers, split digit by digit, each with the
state after it. A scanner does not bound lengths: its caller counts characters.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from sys import maxsize
from threading import Lock

from dlm.grammar.json_escapes import SHORT, numbered
from dlm.grammar.limits import RESULTS, LimitedCache
from dlm.grammar.parse.lengths import Lengths
from dlm.grammar.parse.segments import clipped, scalars, split, utf16, within
from dlm.grammar.regex.automaton import Automaton, Transition
from dlm.grammar.regex.nodes import Spelling

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_ASCII = 0x7F  # the last character
_PLAIN = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7F))  # ASCII that a JSON string holds unescaped
# UTF-8: bytes of a character, the bits that mark its lead byte, the least and greatest code point.
_LEADS = ((2, 0xC0, 0x80, 0x7FF), (3, 0xE0, 0x800, 0xFFFF), (4, 0xF0, 0x10000, 0x10FFFF))

_COSTS = 1 << 14  # cached costs
_COUNTED_ENDS = 8  # ends of a character that has begun, from which texts are counted
_STATE_BYTES = 500  # of memory of a state with its moves

CharacterRanges = tuple[tuple[int, int], ...]  # first and last code points
Move = tuple[int, int, int]  # first and last byte, and the state after them


class Scanner:
    """A scanner of one automaton's texts in one spelling. It begins in state `start`."""

    def __init__(self, automaton: Automaton, spelling: Spelling):
        self.automaton, self._accepts = automaton, automaton.final
        self.escaped, self.quoted = spelling is not Spelling.RAW, spelling is Spelling.QUOTED
        self._lengths = lengths_of(automaton, spelling)
        self._lock = Lock()
        self._keys: list[tuple] = []
        self._fewest: list[int] = []
        self._numbers: dict[tuple, int] = {}
        self.known_moves: list[tuple[Move, ...] | None] = []
        self._costs: LimitedCache[tuple[int, int, int | None], int | None] = LimitedCache(_COSTS)
        self._lead_moves: dict[tuple, tuple[Move, ...]] = {}  # by edges from U+0080 on
        self._endings: list[list[tuple[bytes, int, int]] | None] = []
        self.final: list[bool] = []
        self.boundary: list[bool] = []  # entering the state ends a character
        self.start = self._state(("open",) if self.quoted else ("at", 0))

    def __len__(self) -> int:
        """Return the number of states reached so far."""
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        """Approximate memory, without the automaton."""
        return _STATE_BYTES * len(self) + self._lengths.nbytes

    @cached_property
    def endless(self) -> bool:
        """Whether texts of any greater length may follow each state between two characters."""
        return self._lengths.endless

    @cached_property
    def gapless(self) -> bool:
        """Whether texts of all lengths may follow each state between two characters.

        The first state may be one at which no text ends, if it is not reached again.
        """
        edges, final = self.automaton.edges, self._accepts
        once = 0 in final or not any(to == 0 for moves in edges for _, _, to in moves)
        return all(edges) and once and final | {0} == {*range(len(edges))}

    def moves(self, state: int) -> tuple[Move, ...]:
        """Return the moves from `state`: sorted, and without overlaps."""
        moves = self.known_moves[state]
        if moves is None:
            kind, *parts = key = self._keys[state]
            if kind == "at":
                moves = self._between(*parts)
            else:
                out = sorted((low, high, self._state(to)) for low, high, to in self._out(key))
                moves = tuple(_merged(out))
            self.known_moves[state] = moves
        return moves

    def counts(self, state: int, to: int) -> bool:
        """Whether a move from `state` to `to` ends a character."""
        return self.boundary[to] and not (self.quoted and state == self.start)

    def between(self, state: int) -> int | None:
        """Return the automaton's state between two characters of a text; else None."""
        kind, *parts = self._keys[state]
        return parts[0] if kind == "at" else None

    def repeated(self, state: int) -> CharacterRanges | None:
        """Return the characters if exactly any number of them may follow `state`, else None.

        Also None within a character.
        """
        q = self.between(state)
        if q is None or q not in self._accepts:
            return None
        edges = self._edges(q)
        if any(to != q for _, _, to in edges):
            return None
        return tuple((low, high) for low, high, _ in edges)

    def like(self, other: "Scanner", state: int) -> list[int]:
        """Return this scanner's states that correspond to those of `other`, reached from `state`.

        `other` takes any number of some characters, and `state` takes the same (`repeated`).
        """
        q = self._keys[state][1]
        return [self._state(_renamed(key, q)) for key in other._keys]

    def cost(self, state: int, low: int = 0, high: int | None = None) -> int | None:
        """Return the fewest bytes to the end, with `low` to `high` more characters, or None."""
        key = state, low, high
        if key not in self._costs:
            self._costs[key] = min((size for size, *_ in self._completions(*key)), default=None)
        return self._costs[key]

    def fewest_characters(self) -> list[int]:
        """Return the fewest characters to the end by state, with one that is begun."""
        fewest = self._fewest
        if len(fewest) < len(self):
            self._fewest = fewest = [*fewest, *map(self._count, range(len(fewest), len(self)))]
        return fewest

    def variety(self, state: int, low: int, high: int | None) -> tuple[int, int]:
        """Return `Automaton.variety` of texts of `low` to `high` more characters from `state`."""
        most = read = 0
        ends = {(q, characters) for _, q, characters in self._character_ends(state)}
        for end, characters in sorted(ends)[:_COUNTED_ENDS]:
            longest = None if high is None else high - characters
            count, edges = self.automaton.variety(end, low - characters, longest)
            most, read = max(most, count), read + edges
        return most, read

    def _count(self, state: int) -> int:
        if self._keys[state] == ("done",):
            return 0
        fewest = self._lengths.fewest
        return min(fewest[q] + characters for _, q, characters in self._character_ends(state))

    def clamped(self, low: int, high: int | None, reach: int) -> tuple[int, int | None]:
        """Return smaller bounds that are equivalent for the next `reach` characters."""
        low, regular = max(low, 0), self._lengths.regular
        if regular is not None and (excess := low - reach - regular[0]) > 0:
            excess -= excess % regular[1]
            low, high = low - excess, None if high is None else high - excess
        if high is not None and high >= low + reach + len(self.automaton.edges):
            high = None  # if any text is long enough, one is that is at most a cycle longer
        return low, high

    def completion(
        self, state: int, low: int = 0, high: int | None = None, most: int = maxsize
    ) -> bytes:
        """Return the bytes that `cost` counts, or at least the first `most` of them.

        The end must be reachable.
        """
        if self._keys[state] == ("done",):
            return b""
        _, ending, q, characters = min(self._completions(state, low, high))
        low, high = low - characters, None if high is None else high - characters
        text = bytearray(ending)
        for point, times in self._lengths.shortest_path(q, low, high):
            if len(text) >= most:
                return bytes(text)
            text += self._spell(point) * min(times, most - len(text))
        return bytes(text) + b'"' * self.quoted

    def _completions(
        self, state: int, low: int, high: int | None
    ) -> Iterator[tuple[int, bytes, int, int]]:
        """Yield the fewest bytes to the end, for each ending of the character that is begun."""
        if self._keys[state] == ("done",):
            if low <= 0:
                yield 0, b"", 0, 0
            return
        for ending, q, characters in self._character_ends(state):
            most = None if high is None else high - characters
            bytes_ = self._lengths.within(q, low - characters, most)
            if bytes_ is not None:
                yield len(ending) + bytes_ + self.quoted, ending, q, characters

    def _character_ends(self, state: int) -> list[tuple[bytes, int, int]]:
        """Return endings of the character that is begun: bytes, automaton state, characters."""
        endings = self._endings[state]
        if endings is None:
            endings = self._endings[state] = list(self._finish(self._keys[state]))
        return endings

    def _finish(self, key: tuple) -> Iterator[tuple[bytes, int, int]]:
        match key:
            case ("open",):
                yield b'"', 0, 0
            case ("at", q):
                yield b"", q, 0
            case ("utf8", size, segments):
                for low, _, to in segments:
                    yield bytes(0x80 | low >> 6 * i & 0x3F for i in reversed(range(size))), to, 1
            case ("hex", size, segments):
                for low, _, to in segments:
                    digits = b"%0*x" % (size, low)
                    if isinstance(to, int):
                        yield digits, to, 1
                    else:
                        for second, _, after in to:
                            yield digits + b"\\u%04x" % second, after, 1
            case ("escape", q):
                for low, high, to in self._edges(q):
                    short = (s for c, s in SHORT.items() if low <= c <= high)
                    yield next((s.encode() for s in short), numbered(low)), to, 1
            case ("backslash", segments):
                for low, _, to in segments:
                    yield b"\\u%04x" % low, to, 1
            case ("u", segments):
                for low, _, to in segments:
                    yield b"u%04x" % low, to, 1

    def _out(self, key: tuple) -> Iterator[tuple[int, int, tuple]]:
        match key:
            case ("open",):
                yield _QUOTE, _QUOTE, ("at", 0)
            case ("utf8", size, segments):
                for low, high, remaining in split(segments, 64, size):
                    yield 0x80 + low, 0x80 + high, within("utf8", remaining)
            case ("hex", size, segments):
                for low, high, remaining in split(segments, 16, size):
                    to = within("hex", remaining)
                    if low < 10:
                        yield 48 + low, 48 + min(high, 9), to
                    if high > 9:
                        yield 87 + max(low, 10), 87 + high, to
                        yield 55 + max(low, 10), 55 + high, to
            case ("escape", q):
                edges = self._edges(q)
                for low, high, to in clipped(edges, 0, _ASCII):
                    for c, short in SHORT.items():
                        if low <= c <= high:
                            yield ord(short), ord(short), ("at", to)
                yield ord("u"), ord("u"), ("hex", 4, utf16(edges))
            case ("backslash", segments):
                yield _BACKSLASH, _BACKSLASH, ("u", segments)
            case ("u", segments):
                yield ord("u"), ord("u"), ("hex", 4, segments)

    def _between(self, q: int) -> tuple[Move, ...]:
        """Return the moves between two characters: by the next one's first byte, or a quote."""
        edges, moves = self.automaton.edges[q], list[Move]()
        for low, high, to in edges:
            if low > _ASCII:
                break
            after = self._state(("at", to))
            if low > _BACKSLASH or not self.escaped:
                moves.append((low, min(high, _ASCII), after))
                continue
            for begin, end in _PLAIN:
                if low <= end and high >= begin:
                    moves.append((max(low, begin), min(high, end), after))
        if self.escaped and edges:
            moves.append((_BACKSLASH, _BACKSLASH, self._state(("escape", q))))
        if self.quoted and q in self._accepts:
            moves.append((_QUOTE, _QUOTE, self._state(("done",))))
        moves.sort()
        return (*moves, *self._leads(edges))

    def _leads(self, edges: tuple[Transition, ...]) -> tuple[Move, ...]:
        """Return moves by the first byte of a longer UTF-8 sequence. Most states share them."""
        begin = bisect_left(edges, (_ASCII + 1,))
        if begin and edges[begin - 1][1] > _ASCII:
            begin -= 1
            longer = ((_ASCII + 1, *edges[begin][1:]), *edges[begin + 1 :])
        else:
            longer = edges[begin:]
        leads = self._lead_moves.get(longer)
        if leads is None:
            moves = ((low, high, self._state(key)) for low, high, key in _lead_bytes(longer))
            leads = self._lead_moves[longer] = tuple(_merged(moves))
        return leads

    def _state(self, key: tuple) -> int:
        number = self._numbers.get(key)
        return self._new_state(key) if number is None else number

    def _new_state(self, key: tuple) -> int:
        with self._lock:  # grammars that share it may be built in several threads
            number = self._numbers.get(key)
            if number is None:
                number, at = len(self._keys), key[0] == "at"
                self._keys.append(key)
                self.known_moves.append(None)
                self._endings.append(None)
                accepts = at and not self.quoted and key[1] in self._accepts
                self.final.append(accepts or key == ("done",))
                self.boundary.append(at)
                self._numbers[key] = number  # last: it may be read at any time
            return number

    def _edges(self, q: int) -> Sequence[Transition]:
        return scalars(self.automaton.edges[q])

    def _spell(self, point: int) -> bytes:
        return _escaped(point) if self.escaped else chr(point).encode()


@RESULTS.remembered
def _lead_bytes(edges: tuple[Transition, ...]) -> tuple[tuple[int, int, tuple], ...]:
    """Return the first bytes of UTF-8 sequences by which edges from U+0080 on are read, and the key
    of the state after each."""
    characters = scalars(edges)
    return tuple(
        (mark | low, mark | high, within("utf8", remaining))
        for size, mark, least, most in _LEADS
        if (segments := clipped(characters, 0, most, least))
        for low, high, remaining in split(segments, 64, size)
    )


def lengths_of(automaton: Automaton, spelling: Spelling) -> Lengths:
    """Return the lengths of an automaton's texts in a spelling, without quotes around them."""
    return Lengths(automaton, _raw_bytes if spelling is Spelling.RAW else _escaped_bytes)


def _escaped(point: int) -> bytes:
    if point < 0x20 or point in (_QUOTE, _BACKSLASH):
        return b"\\" + (SHORT[point].encode() if point in SHORT else numbered(point))
    return chr(point).encode()


def _escaped_bytes(point: int) -> int:
    return len(_escaped(point))


def _raw_bytes(point: int) -> int:
    return len(chr(point).encode())


def _renamed(key: tuple, q: int) -> tuple:
    """Return the key of a state with `q` in place of the automaton's only state."""
    match key:
        case (("at" | "escape") as kind, _):
            return kind, q
        case (("utf8" | "hex") as kind, size, segments):
            return kind, size, _retargeted(segments, q)
        case (("backslash" | "u") as kind, segments):
            return kind, _retargeted(segments, q)
    return key


def _retargeted(segments: tuple, q: int) -> tuple:
    return tuple(
        (low, high, q if isinstance(to, int) else _retargeted(to, q)) for low, high, to in segments
    )


def _merged(moves: Iterable[Move]) -> Iterator[Move]:
    """Yield moves, with neighbouring ones to the same state merged."""
    pending: Move | None = None
    for low, high, to in moves:
        if pending is not None and pending[1] + 1 == low and pending[2] == to:
            pending = pending[0], high, to
            continue
        if pending is not None:
            yield pending
        pending = low, high, to
    if pending is not None:
        yield pending


class LiteralScanner:
    """A scanner of one text. A state is the number of bytes read."""

    start, quoted = 0, False
    boundary: tuple[bool, ...] = ()  # by state, as that of `Scanner`: characters are not counted

    def __init__(self, raw: bytes):
        self.raw = raw
        self.final = [False] * len(raw) + [True]
        self.nbytes = 200 + 9 * len(raw)  # approximate memory

    def __len__(self) -> int:
        return len(self.final)

    def moves(self, state: int) -> tuple[Move, ...]:
        if self.final[state]:
            return ()
        return ((self.raw[state], self.raw[state], state + 1),)

    def counts(self, state: int, to: int) -> bool:
        return False

    def cost(self, state: int, low: int = 0, high: int | None = None) -> int | None:
        return len(self.raw) - state

    def fewest_characters(self) -> list[int]:
        return [0] * len(self)

    def completion(
        self, state: int, low: int = 0, high: int | None = None, most: int = maxsize
    ) -> bytes:
        end = min(state + most, len(self.raw))
        while end < len(self.raw) and self.raw[end] & 0xC0 == 0x80:  # within a character
            end += 1
        return self.raw[state:end]
