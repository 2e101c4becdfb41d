"""The shortest text from a place in a grammar to its end, and the fewest tokens that spell it.

A remainder is a chain: one piece of the text, then the remainder that follows it. Places of a
grammar that go on alike share the rest of their chains, so a key is counted once, however many
texts lead to it. Counting goes from the right, and looks over the boundaries of pieces: the count
of a place is exact for its text, whatever its length.
"""

from array import array

from dlm.grammar.parse.edges import Follow, Read, ReadToken
from dlm.grammar.parse.meter import Meter
from dlm.grammar.parse.parser import Parser
from dlm.grammar.parse.state import Item, State, Thread
from dlm.grammar.vocabulary import Vocabulary

NEVER = 1 << 30  # tokens: the vocabulary does not spell the text
_PIECE = 64  # bytes: longer pieces are counted in parts, which are kept if work runs out between
_BYTES = 4  # that are counted for a unit of work
_MOST = 128 << 20  # bytes of memory before sharing begins anew


class Remainder:
    """A piece of text, or one control token, and what follows it. Never changed."""

    __slots__ = ("_counts", "_nodes", "after", "control", "text", "window")

    def __init__(
        self,
        text: bytes,
        after: "Remainder | None",
        vocabulary: Vocabulary,
        control: int | None = None,
    ):
        """`after` follows the piece; None: the text ends. `control` stands instead of `text`."""
        self.text, self.after, self.control = text, after, control
        follows = b"" if after is None or control is not None else after.window
        known = array("i", [0]) if after is None else after._counts
        # the piece and the bytes after it, as far as a token may reach from within it
        self.window = text + follows[: vocabulary.longest]
        self._nodes = array("i")  # by byte of `text`: where the first token's path ends
        if control is not None:
            self._counts = array("i", [min(NEVER, 1 + known[0])])
            return
        counts = array("i", [NEVER]) * len(text) + known[: len(self.window) - len(text) + 1]
        trie, held = vocabulary.trie, vocabulary.trie.token_count.data
        nodes = array("i", [0]) * len(text)
        for start in range(len(text) - 1, -1, -1):
            best = NEVER
            for end, node in enumerate(trie.along(self.window, start), start + 1):
                if counts[end] < best and held[node]:
                    best, nodes[start] = counts[end], node
            counts[start] = min(NEVER, best + 1)
        self._counts, self._nodes = counts, nodes

    @property
    def tokens(self) -> int:
        """The fewest tokens that spell all of it; `NEVER`: none do."""
        return self._counts[0]

    @property
    def nbytes(self) -> int:
        """About the memory that it takes by itself."""
        return 300 + 5 * len(self.window) + 4 * len(self.text)

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
            node = here._nodes[at]
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
        self._by_text: dict[tuple[bytes, Remainder | None], Remainder] = {}
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
            if isinstance(place, tuple):  # so many rounds of a rule
                rule, rounds = place
                fewer = ((rule, rounds - 1), after)
                if rounds and fewer not in known:
                    wanted.append(fewer)
                    continue
                inner = (network.start[rule], known[fewer]) if rounds else None
                if inner is not None and inner not in known:
                    wanted.append(inner)
                    continue
                known[key] = after if inner is None else known[inner]
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
                case Read(terminal, _, low, high):
                    scanner = self._parser.scanners[terminal]
                    behind = self._piece(scanner.completion(scanner.start, low, high), behind)
                case ReadToken(ids):
                    control = Remainder(b"", behind, self._vocabulary, min(ids))
                    behind = self._kept(control)
                case Follow(rule, _, low) if low and not network.nullable(rule):
                    repeated = ((rule, low), behind)
                    if repeated not in known:
                        wanted.append(repeated)
                        continue
                    behind = known[repeated]
            known[key] = behind
        return known[state, rest]

    def _piece(self, text: bytes, rest: Remainder | None) -> Remainder | None:
        """`text`, and `rest` after it."""
        for end in range(len(text), 0, -_PIECE):  # from its end: longer texts share these parts
            key = text[max(0, end - _PIECE) : end], rest
            if key not in self._by_text:
                self._meter.spend(1 + len(key[0]) // _BYTES)
                self._by_text[key] = self._kept(Remainder(*key, self._vocabulary))
            rest = self._by_text[key]
        return rest

    def _kept(self, remainder: Remainder) -> Remainder:
        self.nbytes += remainder.nbytes
        return remainder

    def _clear(self) -> None:
        self._by_item.clear()
        self._by_way.clear()
        self._by_text.clear()
        self.nbytes = 0
