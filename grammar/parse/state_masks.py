"""The tokens that may follow a parser state, computed at the first query.

Most of these tokens stay within the terminal that is being read. They depend on it alone, and are
shared by all states and grammars that read it (`Terminals`). The others leave it: the parser reads
their remaining bytes. `Exploration` computes the shared part of the masks ahead of the texts that
need it.
"""

from collections import deque
from collections.abc import Hashable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from jaxtyping import Bool, Int64, UInt32, UInt64

from dlm.grammar.limits import LazyDict, Meter
from dlm.grammar.masks import GrammarMasks, Mask, Nodes, Reached, Trie, WalkTable, token_words, walk
from dlm.grammar.parse.branches import (
    FAR,
    AnyText,
    Bounds,
    Branch,
    Costs,
    TerminalTransitions,
    branches,
    completed,
    moves_of,
)
from dlm.grammar.parse.earley import Parser, State, Thread
from dlm.grammar.parse.network import Network, scanner_of
from dlm.grammar.parse.scanner import CharacterRanges, LiteralScanner, Scanner
from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.nodes import Spelling, Terminal
from dlm.grammar.regex.patterns import automaton_of
from dlm.grammar.vocabulary import Vocabulary

_WALKED, _LOOKED = 100, 1000  # trie nodes walked, or looked at, for a unit of work
_AT_ONCE, _GROUP = 32, 20  # branches built at once, and units of work for them
_BELOW = 5  # units of work for the tokens after another terminal
_NODE_BYTES, _BRANCH_BYTES = 20, 1500  # bytes of memory for a node, and for a branch without nodes
_SET_BYTES, _TERMINAL_BYTES = 300, 1000  # for a cached set without its members, and for a terminal
_MOST_BYTES = 256 << 20  # bytes of memory for all terminals

Words = UInt32[np.ndarray, " words"]


class TerminalTokens:
    """The cached tokens of one terminal, over one vocabulary."""

    def __init__(self, scanner: Scanner | LiteralScanner, all: "Terminals", trie: Trie, size: int):
        self._scanner, self._all, self._trie, self._size = scanner, all, trie, size
        self._cached = 0  # bytes
        self.users = 0  # grammars
        self._branches: dict[tuple[int, int, bool], Branch] = {}  # by node, state, counting
        self._transitions: dict[tuple[int, bool], TerminalTransitions] = {}
        self.forget_sets()

    @cached_property
    def _table(self) -> WalkTable:
        scanner = self._scanner  # the table refers to no `self`: there is no reference cycle
        return WalkTable(lambda s: moves_of(scanner, s))

    @cached_property
    def _stopping(self) -> WalkTable:
        scanner, terminals = self._scanner, self._all
        return WalkTable(
            lambda s: [] if terminals.reads_any_text(scanner, s) else moves_of(scanner, s)
        )

    @property
    def nbytes(self) -> int:
        """Approximate memory of the caches, the tables and the scanner."""
        tables = (each.nbytes for each in vars(self).values() if isinstance(each, WalkTable))
        return _TERMINAL_BYTES + self._cached + self._scanner.nbytes + sum(tables)

    def _hold(self, count: int) -> None:
        """Count `count` more bytes of caches."""
        self._cached += count
        self._all.hold(count)

    def forget(self) -> None:
        """Clear all caches except the tables, which are small."""
        self._branches.clear()
        self._transitions.clear()
        self.forget_sets()
        self._cached = 0

    def forget_sets(self) -> None:
        """Clear the sets of tokens, but keep the walks they were made from."""
        self._words: dict[tuple[int, Bounds], Words] = {}
        self._ends: dict[tuple[int, Bounds], Nodes] = {}
        self._below: dict[bytes, tuple[Words, Nodes]] = {}

    def clamped(self, state: int, bounds: Bounds, meter: Meter) -> Bounds:
        """Return bounds that allow the same tokens, one for many, so that masks are shared."""
        if bounds == (0, None) or isinstance(self._scanner, LiteralScanner):
            return 0, None
        return self._scanner.clamped(*bounds, self._at(state, bounds, meter).most)

    @property
    def start(self) -> int:
        return self._scanner.start

    def explore(self, state: int, bounded: bool, meter: Meter) -> list[int]:
        """Compute the transitions of `state`, also those for bounded masks if `bounded`.

        Returns the next states. States within a character are skipped, since they are quick.
        """
        scanner = self._scanner
        if isinstance(scanner, Scanner) and (scanner.boundary[state] or state == scanner.start):
            self._at(state, (0, None), meter)
            if bounded:
                self._at(state, (0, 0), meter)
        meter.add(1)
        return [to for _, _, to in scanner.moves(state)]

    def words(self, state: int, bounds: Bounds, meter: Meter) -> Words:
        """Return the tokens that stay within the terminal, as packed bits."""
        key = state, bounds
        if key not in self._words:
            transitions = self._at(state, bounds, meter)
            meter.spend(1 + transitions.doubtful(bounds) // _LOOKED)
            tokens = transitions.tokens(bounds)
            self._words[key] = token_words(tokens, self._size)
            self._hold(_SET_BYTES + self._words[key].nbytes)
        return self._words[key]

    def below(self, nodes: Nodes, meter: Meter) -> tuple[Words, Nodes]:
        """Read the terminal from its start below `nodes` of the trie.

        Returns the tokens that stay within it, as packed bits, and the nodes at which it may end
        and a token may continue. These include `nodes` if its text may be empty.
        """
        key = nodes.tobytes()
        if key not in self._below:
            scanner, trie = self._scanner, self._trie
            meter.spend(_BELOW)
            table = self._table
            reached = table.walk_below(trie, nodes, scanner.start)
            meter.add(len(reached.nodes) // _WALKED)
            words = token_words(trie.tokens_at(reached.nodes)[0], self._size)
            final = np.array(scanner.final)[reached.states] & (trie.children[reached.nodes] > 0)
            ends = reached.nodes[final]
            if scanner.final[scanner.start]:
                ends = np.concatenate([ends, nodes])
            self._below[key] = words, ends
            self._hold(_SET_BYTES + len(key) + words.nbytes + ends.nbytes)
        return self._below[key]

    def costs(self, state: int, bounds: Bounds, meter: Meter) -> Costs:
        return self._at(state, bounds, meter).costs(bounds)

    def ends(self, state: int, bounds: Bounds, meter: Meter) -> Nodes:
        """Return `TerminalTransitions.ends` of `state`."""
        key = state, bounds
        if key not in self._ends:
            self._ends[key] = self._at(state, bounds, meter).ends(bounds)
            self._hold(_SET_BYTES + self._ends[key].nbytes)
        return self._ends[key]

    def branch(self, node: int, start: bool, counting: bool, meter: Meter) -> Branch:
        """Return the branch of a child of the root, for a terminal of any text.

        `start`: the text is read from before its opening quote, else from within.
        """
        (_, _, inside), *_ = self._scanner.moves(self._scanner.start)
        self._at(self._scanner.start if start else inside, (0, 0) if counting else (0, None), meter)
        return self._branches[node, inside, counting]

    def _at(self, state: int, bounds: Bounds, meter: Meter) -> TerminalTransitions:
        key = state, bounds != (0, None)
        if key not in self._transitions:
            if isinstance(self._scanner, LiteralScanner):
                self._transitions[key] = self._along(state)
            else:
                self._transitions[key] = self._walked(*key, meter)
        return self._transitions[key]

    def _along(self, state: int) -> TerminalTransitions:
        """Return the transitions of a literal."""
        nodes = np.array([*self._trie.along(self._scanner.completion(state))], np.int32)
        states = np.arange(state + 1, state + 1 + len(nodes), dtype=np.int32)
        if not len(nodes):
            return TerminalTransitions([])
        reached = Reached(nodes, states, nodes[:0])
        owner = np.zeros(len(nodes), np.int16)
        (branch,) = branches(self._scanner, reached, owner, 1, self._trie)
        self._hold(_BRANCH_BYTES + _NODE_BYTES * branch.size)
        return TerminalTransitions([(branch, 0)])

    def _walked(self, state: int, counting: bool, meter: Meter) -> TerminalTransitions:
        """Build the branches in groups, so that finished ones are kept if work runs out."""
        scanner, children = self._scanner, self._trie.first_bytes
        roots = [
            ((children[byte], to), int(scanner.counts(state, to)))
            for low, high, to in scanner.moves(state)
            for byte in range(low, high + 1)
            if byte in children
        ]
        sharing = self._sharing(state, counting, meter)
        new = [root for root, _ in roots if (*root, counting) not in self._branches]
        for begin in range(0, len(new), _AT_ONCE):
            meter.spend(1)
            some = new[begin : begin + _AT_ONCE]
            table = self._table if sharing is None else self._stopping
            reached, owner = table.walk(self._trie, some, counting)
            if sharing is not None:
                start = state == scanner.start
                reached, owner = completed(self._all.any_text, sharing, reached, owner, start)
            meter.add(_GROUP)
            new_branches = branches(scanner, reached, owner, len(some), self._trie)
            for root, branch in zip(some, new_branches, strict=True):
                self._branches[*root, counting] = branch
                meter.add(branch.size // _WALKED)
                self._hold(_BRANCH_BYTES + _NODE_BYTES * branch.size)
        return TerminalTransitions(
            [(self._branches[*root, counting], first) for root, first in roots]
        )

    def _sharing(self, state: int, counting: bool, meter: Meter) -> Scanner | None:
        """Copy the branches after which any text follows from the terminals of any text.

        Returns the scanner; None if nothing can be shared: `state` is neither the start nor
        between two characters, the terminal is not quoted, or it takes any text itself.
        """
        scanner = self._scanner
        if not isinstance(scanner, Scanner) or not scanner.quoted:
            return None
        if not (scanner.boundary[state] or state == scanner.start):
            return None
        shared = self._all.any_text
        if any(each.scanner is scanner for each in shared.values()):
            return None
        for low, high, to in scanner.moves(state):
            if (any_text := shared.get(scanner.repeated(to))) is not None:
                known = self._all.tokens(any_text.scanner)
                for byte in range(low, high + 1):
                    if (node := self._trie.first_bytes.get(byte)) is not None:
                        branch = known.branch(node, state == scanner.start, counting, meter)
                        self._branches.setdefault((node, to, counting), branch)
        return scanner


class Terminals:
    """The terminals of all grammars over one vocabulary, each kept while a grammar uses it."""

    def __init__(self, trie: Trie, size: int):
        self._trie, self._size = trie, size
        self._held = 0  # bytes
        self._scanners: WeakValueDictionary[Terminal | bytes, Scanner | LiteralScanner]
        self._scanners = WeakValueDictionary()
        self._tokens: WeakValueDictionary[Scanner | LiteralScanner, TerminalTokens]
        self._tokens = WeakValueDictionary()
        self.any_text: dict[CharacterRanges | None, AnyText] = {}
        self._any: list[TerminalTokens] = []  # kept, since they are shared

    def scanner(self, terminal: Terminal | bytes) -> Scanner | LiteralScanner:
        scanner = self._scanners.get(terminal)
        if scanner is None:
            scanner = self._scanners[terminal] = scanner_of(terminal)
        return scanner

    def tokens(self, scanner: Scanner | LiteralScanner) -> TerminalTokens:
        known = self._tokens.get(scanner)
        if known is None:
            known = self._tokens[scanner] = TerminalTokens(scanner, self, self._trie, self._size)
        return known

    def used(self, scanner: Scanner | LiteralScanner) -> TerminalTokens:
        """Return `tokens` of a scanner, and count one more grammar that uses them."""
        known = self.tokens(scanner)
        known.users += 1
        return known

    def keeps(self, known: TerminalTokens) -> bool:
        """Whether a terminal is shared by all grammars, and never dropped."""
        return known in self._any

    def share_any_text(self) -> None:
        """Walk the trie for any text and for any line, which takes .5 s at 262,144 tokens."""
        for automaton in (Automaton.ANY, automaton_of(".*", True)):
            scanner = self.scanner(Terminal(automaton, 0, None, Spelling.QUOTED))
            if isinstance(scanner, Scanner):
                any_text, known = AnyText(scanner, self._trie), self.tokens(scanner)
                self.any_text[any_text.characters] = any_text
                self._any.append(known)
                for bounded in (False, True):
                    for to in known.explore(scanner.start, bounded, Meter()):
                        known.explore(to, bounded, Meter())

    def reads_any_text(self, scanner: Scanner | LiteralScanner, state: int) -> bool:
        """Whether the rest of the text from `state` on is that of a shared `AnyText`."""
        return isinstance(scanner, Scanner) and scanner.repeated(state) in self.any_text

    def hold(self, count: int) -> None:
        """Count `count` more bytes of caches."""
        self._held += count

    def trim(self) -> None:
        """Clear the caches between masks if they are too large, except the shared walks."""
        if self._held > _MOST_BYTES:
            for known in self._tokens.values():
                known.forget_sets() if known in self._any else known.forget()
            self._held = 0


_NEVER = FAR + 1  # bytes: the end is unreachable
_NODES = 20  # trie nodes visited for a unit of work
_MASK = 50  # units of work for a mask
_SIDE_BY_SIDE = 16  # alternatives for the next terminal that are looked up one by one


class Following(NamedTuple):
    """Tokens that may follow a state. Tokens with equal `places` lead to the same situation."""

    tokens: Int64[np.ndarray, " n"]
    costs: Int64[np.ndarray, " n"]  # the fewest bytes to the end after each, at most `FAR`
    places: UInt64[np.ndarray, " n"]

    def groups(
        self, chosen: Bool[np.ndarray, " n"] | None
    ) -> Iterator[tuple[Int64[np.ndarray, " m"], int]]:
        """Yield groups of tokens that lead to the same situation, with its cost, sorted by cost.

        `chosen` selects tokens; None: all.
        """
        tokens = self.tokens if chosen is None else self.tokens[chosen]
        costs = self.costs if chosen is None else self.costs[chosen]
        places = self.places if chosen is None else self.places[chosen]
        order = np.lexsort((tokens, places, costs))
        tokens, costs, places = tokens[order], costs[order], places[order]
        new = np.ones(len(tokens), bool)
        new[1:] = places[1:] != places[:-1]
        cuts = [*np.flatnonzero(new).tolist(), len(tokens)]
        found = [
            (int(costs[begin]), int(tokens[begin]), begin, end) for begin, end in pairwise(cuts)
        ]
        for cost, _, begin, end in sorted(found):  # `places` differ from run to run
            yield tokens[begin:end], cost


def _scattered(numbers: np.ndarray) -> np.ndarray:
    """Return hashes of `numbers` (splitmix64's finaliser). Sums of them identify sets."""
    z = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class StateMasks:
    """The masks of one grammar's states."""

    def __init__(
        self,
        parser: Parser,
        vocabulary: Vocabulary,
        terminals: Terminals,
        masks: GrammarMasks,
        meter: Meter,
    ):
        self._parser, self._vocabulary, self._masks, self._meter = parser, vocabulary, masks, meter
        self._terminals = terminals
        scanners = parser.scanners
        self.tokens = LazyDict(lambda terminal: terminals.used(scanners[terminal]))

    @property
    def nbytes(self) -> int:
        """Approximate memory of the terminals that the grammar has used: its share of each."""
        own = (each for each in self.tokens.values() if not self._terminals.keeps(each))
        return sum(each.nbytes // each.users for each in own)

    def __del__(self) -> None:
        """Leave the terminals to the grammars that share them."""
        for each in self.tokens.values():
            each.users -= 1

    def mask(self, state: State) -> Mask:
        """Return the row of `state`. States with the same threads share a row."""
        known = self._masks.known.get(state)
        if known is None:
            key = self._key(state)
            known = self._masks.known.get(key)
            if known is None:
                known = self._masks.kept(key, self._words(state))
            self._masks.known[state] = known
            self._meter.add(1)
        return known

    def following(self, state: State) -> tuple[Following, bool]:
        """Return the tokens that may follow, without stops, and whether all of them reach an end.

        Tokens after which the end is unreachable are left out. The last part is not counted as
        work: it is not cached, so a repeated call could never finish it.
        """
        size, all_end = len(self._vocabulary), True
        costs, places = np.full(size, _NEVER, np.int64), np.zeros(size, np.uint64)
        for number, thread in enumerate(state.threads):
            rest = self._parser.after_terminal(thread).cost
            all_end &= rest is not None
            if rest is not None:
                known, bounds = self.tokens[thread.terminal], (thread.needed, thread.remaining)
                nodes, bytes_, at = known.costs(thread.at, bounds, self._meter)
                tokens, owner = self._vocabulary.trie.tokens_at(nodes)
                np.minimum.at(costs, tokens, np.minimum(bytes_[owner] + min(rest, FAR), FAR))
                np.add.at(places, tokens, _scattered(at[owner] + (number << 48)))
        reached, states = self._leaving(state)
        ends = np.array([_NEVER if s.cost is None else min(s.cost, FAR) for s in states] or [0])
        all_end &= all(s.cost is not None for s in states)
        tokens, owner = self._vocabulary.trie.tokens_at(reached.nodes)
        np.minimum.at(costs, tokens, ends[reached.states[owner]])
        np.add.at(places, tokens, _scattered(reached.states[owner].astype(np.int64) + (1 << 62)))
        for token in self._control(state) - {*self._vocabulary.stops}:
            after = self._parser.after(state, token, b"")
            if after is not None and after.cost is not None:
                costs[token] = min(after.cost, FAR)
                places[token] = _scattered(np.array([token + (1 << 61)]))[0]
            all_end &= after is None or after.cost is not None
        tokens = np.flatnonzero(costs < _NEVER)
        return Following(tokens, costs[tokens], places[tokens]), all_end

    def _words(self, state: State) -> Words:
        """Return the tokens that may follow `state`, as packed bits."""
        self._terminals.trim()
        words = np.zeros(-(-len(self._vocabulary) // 32), np.uint32)
        for thread in state.threads:
            known = self.tokens[thread.terminal]
            words |= known.words(thread.at, self._bounds(thread), self._meter)
        reached, _ = walk(self._vocabulary.trie, self, self._after_next(state, words))
        self._meter.add(_MASK + len(reached.nodes) // _NODES)
        leaving = self._vocabulary.trie.tokens_at(reached.nodes)[0]
        if len(leaving):
            words |= token_words(leaving, len(self._vocabulary))
        return words | token_words(self._control(state), len(self._vocabulary))

    def _after_next(self, state: State, words: Words) -> list[tuple[Nodes, State]]:
        """Return trie nodes at which the next terminals end, with the states after them.

        Tokens that stay within the next terminal are added to `words`. They are cached for all
        grammars, since many have the same pairs of terminals.
        """
        begin = []
        for thread in state.threads:
            ends = self.tokens[thread.terminal].ends(thread.at, self._bounds(thread), self._meter)
            if not len(ends):
                continue
            onward = self._parser.after_terminal(thread)
            if len(onward.threads) > _SIDE_BY_SIDE:
                begin.append((ends, onward))
                continue
            bounded = []
            for following in onward.threads:
                if (following.low, following.high) != (0, None):
                    bounded.append(following)
                    continue
                known = self.tokens[following.terminal]
                more, next_ends = known.below(ends, self._meter)
                words |= more
                if len(next_ends):
                    begin.append((next_ends, self._parser.after_terminal(following)))
            if bounded:
                begin.append((ends, self._parser.only(onward, bounded)))
        return begin

    def _leaving(self, state: State) -> tuple[Reached, list[State]]:
        """Return the trie nodes and states reached by tokens that leave the state's terminals."""
        begin = []
        for thread in state.threads:
            known, bounds = self.tokens[thread.terminal], self._bounds(thread)
            ends = known.ends(thread.at, bounds, self._meter)
            if len(ends):
                begin.append((ends, self._parser.after_terminal(thread)))
        return walk(self._vocabulary.trie, self, begin)

    def likely(self, state: State) -> Bool[np.ndarray, " 256"]:
        """Return the bytes that may follow `state` if bounds of length are ignored."""
        bytes_ = np.zeros(256, dtype=bool)
        for thread in state.threads:
            for low, high, _ in self._parser.scanners[thread.terminal].moves(thread.at):
                bytes_[low : high + 1] = True
        return bytes_

    def after(self, state: State, byte: int) -> State | None:
        return self._parser.after_byte(state, byte)

    def _control(self, state: State) -> set[int]:
        """Return the control tokens that rules take, and the stops if the text may end."""
        tokens = self._parser.named(state)
        return tokens | {*self._vocabulary.stops} if state.cost == 0 else tokens

    def _bounds(self, thread: Thread) -> Bounds:
        bounds = thread.needed, thread.remaining
        return self.tokens[thread.terminal].clamped(thread.at, bounds, self._meter)

    def _key(self, state: State) -> Hashable:
        """Return a key of everything that the mask depends on."""
        threads = ((t.terminal, t.at, self._bounds(t), t.onward) for t in state.threads)
        return frozenset((*threads, *state.items)), state.cost == 0


_BEGUN = 100  # units of work for a new terminal
_EDGES = 64  # edges visited for a unit of work


class Exploration:
    """A breadth-first walk over the states of all terminals except literals, to fill caches."""

    def __init__(self, network: Network, tokens: LazyDict[TerminalTokens], meter: Meter):
        self._tokens, self._meter = tokens, meter
        self._bounded: dict[int, bool] = {}  # by terminal: an edge bounds its length
        for edge in network.reads():
            if not isinstance(network.terminals[edge.terminal], bytes):
                bounded = (edge.low, edge.high) != (0, None)
                self._bounded[edge.terminal] = bounded or self._bounded.get(edge.terminal, False)
        self._todo: deque[tuple[int, int | None]] = deque((each, None) for each in self._bounded)
        self._met: set[tuple[int, int]] = set()
        meter.add(sum(map(len, network.edges)) // _EDGES)

    def __bool__(self) -> bool:
        """Whether states are left to explore."""
        return bool(self._todo)

    def advance(self) -> None:
        """Begin a terminal, or explore one state. Raises `Unfinished`: then call it again."""
        terminal, state = self._todo[0]
        if state is None:
            self._meter.add(_BEGUN)
            onward = [self._tokens[terminal].start]
        else:
            onward = self._tokens[terminal].explore(state, self._bounded[terminal], self._meter)
        self._todo.popleft()
        new = {(terminal, to) for to in onward} - self._met
        self._met |= new
        self._todo.extend(sorted(new))
