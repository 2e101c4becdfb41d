"""The compiler from specs to grammars, one for each vocabulary, and the warm-up of grammars.

Compiled grammars are cached. A grammar's own caches are filled before its first request, in small
steps. The terminals are explored first. Then simple texts of the grammar are read, since states and
masks are built when a text reaches them: two texts through the whole grammar, in compact and in
indented JSON, and more that differ from the first in one place each. A model's texts differ from
these mostly within strings and numbers, where states repeat.
"""

import heapq
import pickle
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from itertools import count, islice
from threading import Lock

import numpy as np

from dlm.grammar.calls import VocabularySlice
from dlm.grammar.canvas.frontier import Frontier
from dlm.grammar.canvas.workers import Task, Workers, build, read
from dlm.grammar.constraint import Candidates
from dlm.grammar.errors import CrashError, GrammarError, Unfinished
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.earley import Parser, State
from dlm.grammar.parse.network import Network
from dlm.grammar.parse.state_masks import Exploration, Terminals
from dlm.grammar.specs.spec import Spec
from dlm.grammar.vocabulary import Vocabulary

_REMEMBERED = 1024  # grammars and failures in the cache
_LOOKED = 16  # uses between two measurements of all grammars; at each use if the cache is half full


class Compiler:
    """A compiler of specs for one vocabulary, with a cache of grammars.

    Networks are built in other processes, which can be ended. The cache takes about `max_bytes`
    at most, and drops the least recently used grammars.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        max_bytes: int = 1 << 30,
        seconds: float = 10.0,
        workers: Workers | None = None,
    ):
        """`seconds` limits the processor time of a compile. `workers` may be shared by several
        compilers, and their owner closes them; None: the compiler makes and closes its own.
        """
        self.vocabulary, self._seconds, self._max_bytes = vocabulary, seconds, max_bytes
        vocabulary.index()
        self._terminals = Terminals(vocabulary.trie, len(vocabulary))
        self._terminals.share_any_text()
        self._workers, self._shared = workers or Workers(), workers is not None
        self._lock = Lock()
        self._known: OrderedDict[Hashable, Task] = OrderedDict()
        self._sizes: dict[Hashable, int] = {}  # bytes at the last measurement
        self._uses = 0
        self._cold: dict[int, Warmup] = {}  # by the grammar's `id`; changed by several threads

    def submit(self, spec: Spec) -> Task:
        """Compile in the background. Equal specs share a task, which a caller may `leave`.

        The task raises `InvalidGrammarError` if no grammar can express `spec`, and `LimitError`
        if the compile takes too long.
        """
        with self._lock:
            known = self._known.get(spec.key)
            if known is None or not known.join() or _crashed(known):
                self._known[spec.key] = self._workers.submit(
                    build,
                    (spec.portable, self.vocabulary.call),
                    seconds=self._seconds,
                    label=f"{spec.kind}: {{}} to compile",
                    then=self._finish,
                )
            return self._used(spec.key)

    def compile(self, spec: Spec) -> Compiled:
        """Compile in this thread, without a limit of time. Raises `InvalidGrammarError`."""
        return self._cached(spec.key, lambda: build(spec, self.vocabulary.call))

    def unpack(self, packed: bytes) -> Compiled:
        """Return the grammar of `Compiled.packed` from another process. Equal bytes share one.

        The bytes are unpickled, so they must come from a trusted process.
        """
        return self._cached(sha256(packed).digest(), lambda: pickle.loads(packed))

    def _cached(self, key: Hashable, make: Callable[[], tuple[Network, bool]]) -> Compiled:
        with self._lock:
            known = self._known.get(key)
            usable = known is not None and known.join() and not _crashed(known)
        if not usable:
            future = Task()
            try:
                future.set_result(self._finish(make()))
            except Exception as error:
                future.set_exception(error)
            with self._lock:
                self._known[key] = future
        with self._lock:
            future = self._used(key)
        return future.result()

    def check(self, spec: Spec, tokens: Sequence[int], seconds: float) -> Task:
        """Run `Spec.read` on a finished answer in the background. Raises `LimitError`, too.

        It is urgent, since its request occupies a slot: it overtakes compiles.
        """
        args = spec.portable, list(tokens), VocabularySlice.of(self.vocabulary, tokens)
        label = "the result {} to check"
        return self._workers.submit(read, args, seconds=seconds, label=label, urgent=True)

    @property
    def cold(self) -> bool:
        """Whether a grammar is left to warm up."""
        return any(not warmup.done for warmup in list(self._cold.values()))

    def warm_up(self, work: int) -> None:
        """Spend about `work` units on the warm-up of a grammar. Call it while no request waits."""
        for key, warmup in list(self._cold.items()):
            if not warmup.done:
                warmup.go_on(work)
                return
            self._cold.pop(key, None)

    def close(self) -> None:
        """End compiles and checks, unless the workers are shared."""
        if not self._shared:
            self._workers.close()

    def _finish(self, built: tuple[Network, bool]) -> Compiled:
        """Return the grammar of a network. It is quick, since other threads wait meanwhile."""
        network, checked = built
        compiled = Compiled(network, self.vocabulary, self._terminals, checked)
        self._cold[id(compiled)] = Warmup(compiled)
        return compiled

    def _used(self, key: Hashable) -> Task:
        """Return the task of `key`, after dropping the least recently used until the cache fits."""
        self._known.move_to_end(key)
        self._uses += 1
        near = 2 * sum(self._sizes.values()) > self._max_bytes
        for each in [*self._known] if near or self._uses % _LOOKED == 0 else (key,):
            self._sizes[each] = _size(self._known[each])
        total = sum(self._sizes.values())
        for old in [*self._known][:-1]:
            if total <= self._max_bytes and len(self._known) <= _REMEMBERED:
                break
            if self._known[old].done():
                total -= self._sizes.pop(old, 0)
                self._forget(self._known.pop(old))
        return self._known[key]

    def _forget(self, dropped: Task) -> None:
        """Stop the warm-up of a dropped grammar. Its last request frees it."""
        if _size(dropped):
            self._cold.pop(id(dropped.result()), None)


def _crashed(future: Task) -> bool:
    """Whether the task ended without a result that depends on its grammar."""
    if not future.done():
        return False
    return future.cancelled() or isinstance(future.exception(), CrashError)


def _size(future: Task) -> int:
    if not future.done():
        return 0
    return 0 if _crashed(future) or future.exception() else future.result().nbytes


_LOOK, _RANGE = 3, 2  # units of work for a state, and for each range of bytes there
_WAYS = 2  # continuations computed for a state: one to take, one to return to
_DEEP = 3  # depth of nested objects
_LONGEST = 3072  # bytes of a text after its last control token

_ANY = {b"{", b"[", b'"', b"t", b"n", b"1"}  # first bytes of a value of any type

# Bytes in order of preference; escapes and other alphabets only if nothing else is allowed.
_USUAL = b'a1"0,:[{.-]}' + bytes(byte for byte in range(33, 127) if byte != ord("\\"))


@dataclass(frozen=True, slots=True)
class TextPart:
    """The beginning of a text."""

    tokens: tuple[int, ...] = ()  # up to the last control token
    text: bytes = b""  # after it

    def spelled(self, vocabulary: Vocabulary) -> list[int]:
        return [*self.tokens, *vocabulary.encode(self.text.decode(errors="ignore"))]


class WarmupTexts:
    """Texts that each reach new states, with at most `turns` deviations from the first text.

    The first text takes the most usual continuation that leads to a new state. If there is none,
    and the text may not end, it returns to the last state with another continuation.
    """

    def __init__(self, compiled: Compiled, indented: bool = False, turns: int = 0):
        """`indented`: the texts are JSON with a line for each value."""
        self._compiled, self._indented, self._turns = compiled, indented, turns
        self._seen: set[State] = set()
        self._begun = count(1)  # numbers the texts, which are finished one by one
        self._todo = [(0, 0, compiled.parser.start, TextPart())]  # turns, number, state, text
        self._missed: list[tuple[State, TextPart]] = []  # second choices of the current text

    def __bool__(self) -> bool:
        """Whether there may be more texts."""
        return bool(self._todo)

    def advance(self) -> TextPart | None:
        """Visit one more state. Returns the text up to it if no new state follows, else None.

        Raises `Unfinished`, with nothing changed: then call it again.
        """
        turned, number, state, text = self._todo[0]
        last, known = turned == self._turns, state in self._seen
        new = [] if known else [*islice(self._fresh(state, text), _WAYS if last else None)]
        self._compiled.meter.add(_LOOK + _RANGE * _width(self._compiled.parser, state))
        heapq.heappop(self._todo)
        if known:
            return None
        self._seen.add(state)
        finished = None if new else text
        if last:
            self._missed += new[1:]
            new = new[:1] or self._back(state)
        for i, (at, longer) in enumerate(new):
            place = turned + bool(i), next(self._begun) if i else number
            heapq.heappush(self._todo, (*place, at, longer))
        return finished

    def _fresh(self, state: State, text: TextPart) -> Iterator[tuple[State, TextPart]]:
        """Yield continuations of `text` to new states, one for each."""
        if len(text.text) >= _LONGEST:
            return
        met = {state}
        for at, longer in _continuations(self._compiled, state, text, self._indented):
            if at is not None and at.cost is not None and at not in met and at not in self._seen:
                met.add(at)
                yield at, longer

    def _back(self, state: State) -> list[tuple[State, TextPart]]:
        """Return the last second choice that is still new, if no text may end at `state`."""
        while self._missed and state.cost:
            at, text = self._missed.pop()
            if at not in self._seen:
                return [(at, text)]
        self._missed.clear()
        return []


def _width(parser: Parser, state: State) -> int:
    """Return the number of byte ranges of the state's threads, as a measure of work."""
    return sum(len(parser.scanners[thread.terminal].moves(thread.at)) for thread in state.threads)


def _continuations(
    compiled: Compiled, state: State, text: TextPart, indented: bool
) -> Iterator[tuple[State | None, TextPart]]:
    """Yield continuations of `text` at `state`, usual ones first, with the states after them."""
    parser, written = compiled.parser, text.text
    for byte in _bytes(parser, state, written):
        spaced = _space(written, byte, indented) + byte
        at = _after(parser, state, spaced)
        if at is None:
            spaced, at = byte, _after(parser, state, byte)
        yield at, TextPart(text.tokens, written + spaced)
    for space in (b" ", b"\n"):
        if at := _after(parser, state, space):
            for byte in _bytes(parser, at, space):
                yield _after(parser, at, byte), TextPart(text.tokens, written + space + byte)
    for token in sorted(parser.named(state)):
        tokens = (*text.spelled(compiled.vocabulary), token)
        yield parser.after(state, token, b""), TextPart(tokens)


def _after(parser: Parser, state: State | None, text: bytes) -> State | None:
    for byte in text:
        state = state and parser.after_byte(state, byte)
    return state


def _bytes(parser: Parser, state: State, text: bytes) -> list[bytes]:
    """Return usual bytes that may follow `text`, sorted by preference.

    A name comes before other text, and the end of a word before more of it. Names are in the order
    of the grammar. For a value of any type, an object comes first, or a string if nested deeply.
    """
    ranges = parser.ranges(state)
    usual = {byte for low, high in ranges if (byte := _first(low, high))}
    names = {
        byte: place
        for place, (low, high) in reversed([*enumerate(ranges)])
        if low == high and ((byte := bytes([low])).isalpha() or byte == b"_")
    }
    deep = text.count(b"{") - text.count(b"}") >= _DEEP
    value = (b'"' if deep else b"{") if usual >= _ANY else None
    digits = text[-1:].isdigit()  # an exponent may follow, which is unusual
    word = len(text) > 1 and text[-2:].isalnum()

    return sorted(
        usual,
        key=lambda byte: (
            byte != value,
            digits or byte not in names,
            word and byte.isalnum(),
            names.get(byte, 0),
            _USUAL.index(byte),
        ),
    ) or [bytes([low]) for low, _ in ranges[:1]]


@cache
def _first(low: int, high: int) -> bytes:
    """Return the most usual byte of a range; b"" if none of them is usual."""
    return next((bytes([byte]) for byte in _USUAL if low <= byte <= high), b"")


def _space(text: bytes, byte: bytes, indented: bool) -> bytes:
    """Return the usual white space of JSON between `text` and `byte`."""
    closes, opened = byte in (b"]", b"}"), text.endswith((b"[", b"{"))
    if text.endswith(b":"):
        return b" "
    if not indented:
        return b" " if text.endswith(b",") else b""
    if closes == opened and not text.endswith(b","):
        return b""
    depth = sum(map(text.count, b"[{")) - sum(map(text.count, b"]}")) - closes
    return b"\n" + b"  " * depth


_MOST_WORK = 200_000  # units of a whole warm-up: 1 to 2 s
_EXPLORING = 40_000  # units spent on terminals at most, before texts are read
_STATES, _MASKS = 6144, 512  # the warm-up is done if more of either are known
_READ, _CANVAS = 1024, 16  # tokens read of a text, and at a time
_KNOWN = 4  # known symbols read for a unit of work
_BUDGET = 1 << 30  # tokens: large enough for any text


class _Refused(Exception):  # noqa: N818  # a signal, not an error
    """The grammar refuses the rest of a text, for example a repeated key."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Scores of a model that predicts one text, and no other."""

    argmax: list[int]

    def best(self, position: int, allowed: np.ndarray) -> int:
        raise _Refused

    def candidates(self, position: int, allowed: np.ndarray, count: int) -> Candidates:
        raise _Refused


class Warmup:
    """The warm-up of one grammar. It changes caches only."""

    def __init__(self, compiled: Compiled):
        self.compiled = compiled
        self._left = _MOST_WORK
        self._explored = 0  # units
        self._texts = deque(
            [
                WarmupTexts(compiled),
                WarmupTexts(compiled, indented=True),
                WarmupTexts(compiled, turns=1),
            ]
        )
        self._reading: _Reading | None = None
        self.done = False

    def go_on(self, work: int) -> None:
        """Do `work` units of work, or as much as is left.

        The last state or mask may exceed it. Most states are 10 units; a very ambiguous one is
        10,000. A mask is 50, and more for a new terminal: one unit for every 100 trie nodes below
        32 first bytes.
        """
        compiled, meter = self.compiled, self.compiled.meter
        begun, most = meter.spent, min(work, self._left)
        try:
            while not self.done and (left := begun + most - meter.spent) > 0:
                with meter.limited(left):
                    self._advance(left)
                enough = len(compiled.parser) > _STATES or compiled.masks.count > _MASKS
                self.done = enough or not (self._texts or self._reading)
        except Unfinished:
            pass  # the next call continues
        except GrammarError:
            self.done = True  # a request for this grammar will raise it again
        self._left -= meter.spent - begun
        self.done = self.done or self._left <= 0

    @cached_property
    def _exploration(self) -> Exploration:
        """The exploration of terminals. It visits all edges, so `go_on` creates it, as work."""
        return self.compiled.exploration()

    def _advance(self, work: int) -> None:
        """Do a small part of the work. If it raises `Unfinished`, only caches have changed."""
        if self._exploration and self._explored < _EXPLORING:
            begun = self.compiled.meter.spent
            try:
                self._exploration.advance()
            finally:
                self._explored += self.compiled.meter.spent - begun
            return
        if self._reading is not None:
            self._reading.advance(work)
            if self._reading.done:
                self._reading = None
            return
        texts = self._texts[0]
        text = texts.advance()
        if text is not None:
            self._reading = _Reading(self.compiled, text)
        if not texts:
            self._texts.popleft()


class _Reading:
    """The reading of one text: byte by byte, since tokens may end anywhere, then by its tokens."""

    def __init__(self, compiled: Compiled, text: TextPart):
        self._compiled, self._state = compiled, compiled.parser.start
        self._symbols = deque([*text.tokens, *(bytes([byte]) for byte in text.text)])
        self._tokens = deque(text.spelled(compiled.vocabulary)[:_READ])
        self._frontier: Frontier | None = None  # made later, since that is work
        compiled.meter.add(len(self._symbols) // _KNOWN)

    @property
    def done(self) -> bool:
        return not self._symbols and not self._tokens

    def advance(self, work: int) -> None:
        if self._symbols:
            self._read(self._symbols[0])
        else:
            self._guide(work)

    def _read(self, symbol: int | bytes) -> None:
        """Read a token; or read a byte and compute the mask after it."""
        compiled, parser = self._compiled, self._compiled.parser
        if isinstance(symbol, int):
            state = compiled.after(self._state, symbol)
        else:
            state = parser.after_byte(self._state, symbol[0])
            if state is not None and not parser.forced(state):
                compiled.mask(state)
        self._symbols.popleft()
        if state is None:
            self._symbols.clear()
        else:
            self._state = state

    def _guide(self, work: int) -> None:
        """Read a few tokens as a canvas."""
        canvas = [*islice(self._tokens, _CANVAS)]
        frontier = self._frontier = self._frontier or Frontier(self._compiled, _BUDGET)
        frontier.work = work
        try:
            frontier.guide(_Wanted(canvas))
            frontier.commit(canvas)
        except _Refused:
            self._tokens.clear()
        else:
            for _ in canvas:
                self._tokens.popleft()
