"""The shortest text from a place in a grammar to its end, and the fewest tokens that spell it.

A remainder is a chain: one piece of the text, then the remainder that follows it. Places of a
grammar that go on alike share the rest of their chains, so a key is counted once, however many
texts lead to it. Counting goes from the right, and looks over the boundaries of pieces: the count
of a place is exact for its text, whatever its length.

A text of the fewest tokens, where the one of the fewest bytes takes more than there are.

States tell how many bytes are missing, and these bound the tokens. But a longer text may be spelled
in fewer: "ought" in one token, "zqj" in three. This looks, level by level, at what each next token
leads to; it gives up where that is too much to look at, as inside a free string.
"""

from array import array
from collections import deque
from typing import NamedTuple

from dlm.grammar.errors import Unfinished
from dlm.grammar.parse.earley import Item, Parser, State, Thread
from dlm.grammar.parse.limits import Meter
from dlm.grammar.parse.network import RuleEdge, TerminalEdge, TokenEdge
from dlm.grammar.vocabulary import Vocabulary

NEVER = 1 << 30  # tokens: the vocabulary does not spell the text
_PIECE = 64  # bytes: longer pieces are counted in parts, which are kept if work runs out between
_EACH = 2  # units of work for a piece, were it counted before or not
_NODES = 16  # of the trie that are visited for a unit of work
_MOST = 128 << 20  # bytes of memory before sharing begins anew


class Counted(NamedTuple):
    """Fewest tokens by byte of a piece of text, shared by all equal pieces in equal contexts."""

    counts: array  # by byte, then of what follows: less the `base` of a remainder, or `NEVER`
    nodes: array  # by byte of the piece: the node of the trie of its first token
    visited: int  # nodes of the trie


_END = array("i", [0])  # no tokens are left


def count(text: bytes, follows: bytes, behind: array, vocabulary: Vocabulary) -> Counted:
    """Count the fewest tokens from each byte of `text`, from right to left.

    `follows` are the bytes after `text` that a token may reach into, and `behind` the counts from
    each of them and from their end, less a number that all of them share.
    """
    trie, held = vocabulary.trie, vocabulary.trie.token_count.data
    window, size, visited = text + follows, len(text), 0
    counts, nodes = array("i", [NEVER]) * size + behind, array("i", [0]) * size
    for start in range(size - 1, -1, -1):
        best, end = NEVER, start
        for end, node in enumerate(trie.along(window, start), start + 1):
            if counts[end] < best and held[node]:
                best, nodes[start] = counts[end], node
        counts[start] = min(NEVER, best + 1)
        visited += 1 + end - start
    return Counted(counts, nodes, visited)


class Remainder:
    """A piece of text, or one control token, and what follows it. Never changed."""

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
        """`after` follows the piece; None: the text ends. `control` stands instead of `text`.

        `window` is the piece and the bytes after it, as far as a token may reach from within it;
        `base` is added to all counts of `counted`.
        """
        self.text, self.after, self.control = text, after, control
        self.window, self.counted, self.base = window, counted, base

    @property
    def tokens(self) -> int:
        """The fewest tokens that spell all of it; `NEVER`: none do."""
        first = self.counted.counts[0]
        return first if first == NEVER else min(NEVER, self.base + first)

    @property
    def nbytes(self) -> int:
        """About the memory that it takes by itself, its counts left out."""
        return 300 + len(self.window) + len(self.text)

    def spelled(self, vocabulary: Vocabulary, most: int) -> tuple[list[int], bool]:
        """Its tokens, or the first `most` of them, and whether these are all."""
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
    """Remainders of the places of one grammar, made when they are first asked for."""

    def __init__(self, parser: Parser, vocabulary: Vocabulary, meter: Meter):
        self._parser, self._vocabulary, self._meter = parser, vocabulary, meter
        self._network = parser.network
        self._by_item: dict[Item, Remainder | None] = {}
        # by a network state, or a rule and its rounds, and by what follows
        self._by_way: dict[tuple[int | tuple[int, int], Remainder | None], Remainder | None] = {}
        self._rounds: dict[tuple[int, Remainder | None], int] = {}  # the most that are known
        self._by_text: dict[tuple[bytes, Remainder | None], Remainder] = {}
        # by a piece, what follows it, and the counts of that: equal pieces are counted once
        self._counted: dict[tuple[bytes, bytes, bytes], Counted] = {}
        # the last text that work has run out for, what follows it, and how much is left to count
        self._unfinished: tuple[bytes, Remainder | None, int, Remainder | None] | None = None
        self.nbytes, self._begun = 0, False

    def of(self, state: State) -> Remainder | None:
        """The shortest text from `state` on, which must have one; None: it may end here.

        Raises `Unfinished`; what was counted is kept, and asking again goes on.
        """
        if self.nbytes > _MOST and not self._begun:
            self._clear()
        self._begun, best = True, state.best  # what is begun has to stay, or it never ends
        if isinstance(best, Thread):
            scanner = self._parser.scanners[best.terminal]
            text = scanner.completion(best.at, best.needed, best.remaining)
            found = self._piece(text, self._of_item(best.behind))
        else:
            found = None if best is None else self._of_item(best)
        self._begun = False
        return found

    def tokens(self, state: State) -> int:
        """The fewest tokens of that text; `NEVER` where there is none."""
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
        """The shortest way from `state` to the end of its rule, and `rest` after it."""
        known, network = self._by_way, self._network
        wanted: list[tuple[int | tuple[int, int], Remainder | None]] = [(state, rest)]
        while wanted:
            key = place, after = wanted[-1]
            if key in known:
                wanted.pop()
                continue
            if isinstance(place, tuple):  # rounds of a rule: the last one is counted first
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
            behind = known[onward]
            match edge:
                case TerminalEdge(terminal, _, low, high):
                    scanner = self._parser.scanners[terminal]
                    behind = self._piece(scanner.completion(scanner.start, low, high), behind)
                case TokenEdge(ids):
                    self._meter.spend(1)
                    behind = self._kept(self._named(min(ids), behind))
                case RuleEdge(rule, _, low) if low and not network.nullable(rule):
                    repeated = ((rule, low), behind)
                    if repeated not in known:
                        wanted.append(repeated)
                        continue
                    behind = known[repeated]
            known[key] = behind
        return known[state, rest]

    def _piece(self, text: bytes, rest: Remainder | None) -> Remainder | None:
        """`text`, and `rest` after it."""
        end, found = len(text), rest
        if self._unfinished is not None and self._unfinished[:2] == (text, rest):
            _, _, end, found = self._unfinished
        try:
            while end > 0:  # from its end: longer texts share these parts
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
        """A piece of text, counted unless an equal one is known that as much follows."""
        follows, behind, base = b"", _END, 0
        if after is not None:
            follows = after.window[: self._vocabulary.longest]
            behind, base = after.counted.counts[: len(follows) + 1], after.base
        least = min(behind)
        if 0 < least < NEVER:
            behind = array("i", [c if c == NEVER else c - least for c in behind])
            base += least
        key = text, follows, behind.tobytes()
        counted = self._counted.get(key)
        if counted is None:
            counted = self._counted[key] = count(text, follows, behind, self._vocabulary)
            self._meter.add(counted.visited // _NODES)
            self.nbytes += 400 + 4 * (2 * len(counted.counts) + len(counted.nodes))
        return Remainder(text, after, text + follows, counted, base)

    def _named(self, control: int, after: Remainder | None) -> Remainder:
        """A control token: no token of text reaches into it."""
        tokens = 1 + (0 if after is None else after.tokens)
        counts = array("i", [0 if tokens < NEVER else NEVER])
        return Remainder(b"", after, b"", Counted(counts, array("i"), 0), tokens, control)

    def _kept(self, remainder: Remainder) -> Remainder:
        self.nbytes += remainder.nbytes
        return remainder

    def _clear(self) -> None:
        self._by_item.clear()
        self._by_way.clear()
        self._by_text.clear()
        self._rounds.clear()
        self._counted.clear()
        self._unfinished = None
        self.nbytes = 0


_LOOKS = 50_000  # bytes that are read at most
_BYTES = 12  # that are read for a unit of work

TokenPath = list[tuple[State, int]]  # tokens, each with the state that it is read at


class FewestTokens:
    """A search for a text of the fewest tokens, from the first state of a grammar to an end.

    Where work runs out in the middle, `Unfinished` is raised, and asking again goes on.
    """

    def __init__(self, parser: Parser, vocabulary: Vocabulary, meter: Meter, most: int):
        """At most `most` tokens are looked for."""
        self._parser, self._meter = parser, meter
        self._trie, self._longest = vocabulary.trie, vocabulary.longest
        self._left, self._looks = most, 0
        self._seen = {parser.start}
        self._level: deque[tuple[State, TokenPath]] = (
            deque()
        )  # states to be looked at, and ways there
        self._next: list[tuple[State, TokenPath]] = [(parser.start, [])]  # of one token more
        self._found: dict[State, int] = {}  # where tokens lead from the state that is looked at
        self._todo: list[tuple[State, int]] = []  # states within tokens, and nodes of the trie
        self._way: TokenPath | None = None

    def way(self) -> TokenPath:
        """The tokens of the text; empty if there is none, or none that is found soon."""
        while self._way is None:
            if self._todo:
                self._read()
            elif self._level:
                self._leave()
            elif self._left and self._next:
                self._level, self._next = deque(self._next), []
                self._left -= 1
                self._todo = [(self._level[0][0], 0)]
            else:
                self._way = []
        return self._way

    def _read(self) -> None:
        """Read one more byte of all tokens that begin alike."""
        trie, (at, node) = self._trie, self._todo[-1]
        if not node:
            named = sorted(self._parser.named(at))
            after = {self._parser.after(at, token, b""): token for token in named}
            self._found = {state: token for state, token in after.items() if state is not None}
        if self._looks >= _LOOKS:
            self._todo = []
            return
        count = trie.child_count(node)
        self._meter.spend(1)
        onward: list[tuple[State, int]] = []
        for byte, child in trie.each_child(node):
            behind = self._parser.behind(at, byte)
            if behind is not None:
                onward.append((behind, child))
        if trie.token_count[node]:
            self._found.setdefault(at, int(trie.tokens[trie.token_first[node]]))
        self._meter.add(count // _BYTES)  # afterwards: what one look learns the next one keeps
        self._looks += count
        self._todo.pop()
        self._todo += onward

    def _leave(self) -> None:
        """Note where the tokens lead, and go on with the next state of the level."""
        here, way = self._level.popleft()
        for at, token in self._found.items():
            if at.cost == 0:
                self._way = [*way, (here, token)]
                return
            if at in self._seen or at.cost is None or at.cost > self._left * self._longest:
                continue
            self._seen.add(at)
            self._next.append((at, [*way, (here, token)]))
        if self._level:
            self._todo = [(self._level[0][0], 0)]
