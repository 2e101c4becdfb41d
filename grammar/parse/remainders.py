"""The shortest text from a parser state to the end, and the tokens that spell it.

A `Remainder` is a chain: one piece of the text, then the remainder after it. States share the ends
of their chains, so each piece is counted once. Tokens are counted from the right and across the
boundaries of pieces, so the count is exact for the text.
"""

from array import array
from typing import NamedTuple

from dlm.grammar.errors import Unfinished
from dlm.grammar.limits import Meter
from dlm.grammar.parse.earley import Parser
from dlm.grammar.parse.network import RuleEdge, TerminalEdge, TokenEdge
from dlm.grammar.parse.states import Item, State, Thread
from dlm.grammar.vocabulary.vocabulary import Vocabulary

NEVER = 1 << 30  # tokens: the vocabulary does not spell the text
_PIECE = 64  # bytes: longer texts are counted in pieces, which are kept if work runs out
_EACH = 2  # units of work for each piece
_NODES = 16  # trie nodes visited for a unit of work
_SPELLED = 64  # bytes of a terminal's text that are spelled for a unit of work
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
    trie, token_counts = vocabulary.trie, vocabulary.trie.token_count.data
    window, size, visited = text + follows, len(text), 0
    counts, nodes = array("i", [NEVER]) * size + after, array("i", [0]) * size
    for start in range(size - 1, -1, -1):
        best, end = NEVER, start
        for end, node in enumerate(trie.along(window, start), start + 1):
            if counts[end] < best and token_counts[node]:
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
        fewest = self.counted.counts[0]
        return fewest if fewest == NEVER else min(NEVER, self.base + fewest)

    @property
    def nbytes(self) -> int:
        """Approximate memory of this link of the chain, without its counts."""
        return 300 + len(self.window) + len(self.text)

    def spelled(self, vocabulary: Vocabulary, most: int) -> tuple[list[int], bool]:
        """Return the tokens, or the first `most` of them, and whether these are all."""
        trie = vocabulary.trie
        piece: Remainder | None = self
        tokens: list[int] = []
        at = 0
        while True:
            while piece is not None and piece.control is None and at >= len(piece.text):
                piece, at = piece.after, at - len(piece.text)
            if piece is None or len(tokens) >= most:
                return tokens, piece is None
            if piece.control is not None:
                tokens.append(piece.control)
                piece = piece.after
                continue
            node = piece.counted.nodes[at]
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
            remainder = self._piece(text, self._of_item(best.onward))
            self._meter.add(len(text) // _SPELLED)  # last, so that each step finishes some text
        else:
            remainder = None if best is None else self._of_item(best)
        self._begun = False
        return remainder

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
        remainder = None if at is None else self._by_item[at]
        for step in reversed(path):
            remainder = self._by_item[step] = self._along(step.state, remainder)
        return remainder

    def _along(self, state: int, tail: Remainder | None) -> Remainder | None:
        """Return the shortest text from `state` to the end of its rule, with `tail` after it."""
        remainders, network = self._by_path, self._network
        todo: list[tuple[int | tuple[int, int], Remainder | None]] = [(state, tail)]
        while todo:
            key = place, after = todo[-1]
            if key in remainders:
                todo.pop()
                continue
            if isinstance(place, tuple):  # rounds of a rule, counted from the last one
                rule, rounds = place
                most = self._rounds.get((rule, after), 0)
                if most < rounds - 1:
                    todo.append(((rule, most + 1), after))
                    continue
                fewer = after if rounds == 1 else remainders[(rule, rounds - 1), after]
                inner = network.start[rule], fewer
                if inner not in remainders:
                    todo.append(inner)
                    continue
                remainders[key] = remainders[inner]
                self._rounds[rule, after] = max(most, rounds)
                continue
            edge = network.first_edge(place)
            if edge is None:
                remainders[key] = after
                continue
            onward = (edge.to, after)
            if onward not in remainders:
                todo.append(onward)
                continue
            remainder = remainders[onward]
            match edge:
                case TerminalEdge(terminal, _, low, high):
                    scanner = self._parser.scanners[terminal]
                    remainder = self._piece(scanner.completion(scanner.start, low, high), remainder)
                case TokenEdge(ids):
                    self._meter.spend(1)
                    remainder = self._kept(self._named(min(ids), remainder))
                case RuleEdge(rule, _, low) if low and not network.nullable(rule):
                    repeated = ((rule, low), remainder)
                    if repeated not in remainders:
                        todo.append(repeated)
                        continue
                    remainder = remainders[repeated]
            remainders[key] = remainder
        return remainders[state, tail]

    def _piece(self, text: bytes, tail: Remainder | None) -> Remainder | None:
        """Return the remainder of `text`, with `tail` after it."""
        end, remainder = len(text), tail
        if self._unfinished is not None and self._unfinished[:2] == (text, tail):
            _, _, end, remainder = self._unfinished
        try:
            while end > 0:  # from the end, since longer texts share these pieces
                begin = max(0, end - _PIECE)
                key = text[begin:end], remainder
                if key not in self._by_text:
                    self._meter.spend(_EACH)
                    self._by_text[key] = self._kept(self._spelled(*key))
                end, remainder = begin, self._by_text[key]
        except Unfinished:
            self._unfinished = text, tail, end, remainder
            raise
        return remainder

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
