"""The tokens that stay within a terminal. They depend on it alone, and all grammars share them.

One walk of the vocabulary's trie serves all bounds of length: a bounded terminal allows the tokens
of an unbounded one, without those that are too long. Most bytes lead to the same state from many
states of a terminal, so the walk after such a byte is shared (`Branch`).

Many terminals of JSON take all texts except a few, for example the keys that a schema does not
name. Once a text differs from the exceptions, any text may follow. The walk from there is done once
(`AnyText`), and other terminals take their part of it by the order of the trie.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from weakref import WeakValueDictionary

import numpy as np
from jaxtyping import Int32, Int64, UInt32

from dlm.grammar.limits import Meter
from dlm.grammar.masks import Nodes, Owners, Reached, Trie, WalkTable, ranges, token_words
from dlm.grammar.parse.network import scanner_of
from dlm.grammar.parse.scanner import CharacterRanges, LiteralScanner, Scanner
from dlm.grammar.parse.shared_masks import Bounds, Branch, branches
from dlm.grammar.regex.automaton import Automaton, automaton_of
from dlm.grammar.regex.nodes import Spelling, Terminal


class AnyText:
    """The trie nodes reached by any text of some characters, read from either side of its quote."""

    def __init__(self, scanner: Scanner, trie: Trie):
        """`scanner` must take any number of some characters, in quotes."""
        self.scanner, self._trie = scanner, trie
        table = WalkTable(
            lambda s: [(*move, scanner.counts(s, move[2])) for move in scanner.moves(s)]
        )
        (_, _, within), *_ = scanner.moves(scanner.start)
        self.characters = scanner.repeated(within)
        self._found = {True: _sorted(table, scanner, scanner.start, trie)}
        self._found[False] = _sorted(table, scanner, within, trie)

    def below(
        self, scanner: Scanner, state: int, reached: Reached, owner: Owners, start: bool
    ) -> tuple[Reached, Owners]:
        """Return all nodes below those of `reached` in `state`, after which such text follows.

        `start`: they were reached from before the opening quote.
        """
        at = np.flatnonzero(reached.states == state)
        nodes, (places, known) = reached.nodes[at], self._found[start]
        first = self._trie.places[nodes]
        begin, end = np.searchsorted(places, (first, first + self._trie.sizes[nodes]))
        found, which = ranges((begin + 1).astype(np.int32), (end - begin - 1).astype(np.int32))
        like, counts = np.array(scanner.like(self.scanner, state), np.int32), reached.counts
        if len(counts):
            counts = known.counts[found] + (counts[at] - known.counts[begin])[which]
        return Reached(known.nodes[found], like[known.states[found]], counts), owner[at[which]]


def completed(
    any_text: Mapping[CharacterRanges | None, AnyText],
    scanner: Scanner,
    reached: Reached,
    owner: Owners,
    start: bool,
) -> tuple[Reached, Owners]:
    """Return `reached` and `owner`, completed by `AnyText.below` of each state that has one.

    `any_text` maps the characters of any text to it. `start` is that of `AnyText.below`.
    """
    parts = [(reached, owner)]
    for state in np.flatnonzero(np.bincount(reached.states)).tolist():
        if (shared := any_text.get(scanner.repeated(state))) is not None:
            parts.append(shared.below(scanner, state, reached, owner, start))
    found, owners = zip(*parts, strict=True)
    nodes, states, counts = (
        np.concatenate([getattr(each, name) for each in found])
        for name in ("nodes", "states", "counts")
    )
    return Reached(nodes, states, counts), np.concatenate(owners)


def _sorted(
    table: WalkTable, scanner: Scanner, state: int, trie: Trie
) -> tuple[Int32[np.ndarray, " n"], Reached]:
    """Return the nodes reached from a state, sorted by their places in the trie."""
    roots = [
        (node, to)
        for low, high, to in scanner.moves(state)
        for byte, node in trie.first_bytes.items()
        if low <= byte <= high
    ]
    if not roots:
        none = np.zeros(0, np.int32)
        return none, Reached(none, none, none)
    firsts = np.array([scanner.counts(state, to) for _, to in roots], np.int32)
    reached, owner = table.walk(trie, roots, True)
    places = trie.places[reached.nodes]
    order = np.argsort(places)
    counts = (reached.counts + firsts[owner])[order]
    return places[order], Reached(reached.nodes[order], reached.states[order], counts)


_WALKED, _LOOKED = 100, 1000  # trie nodes walked, or looked at, for a unit of work
_AT_ONCE, _GROUP = 32, 20  # branches built at once, and units of work for them
_BELOW = 5  # units of work for the tokens after another terminal
_SCANNER = 44  # the bit of a place from which on the scanner's number is
_NODE = 20  # bytes of memory for a node
_MOST = 256 << 20  # bytes of memory for all terminals

Words = UInt32[np.ndarray, " words"]
Costs = tuple[Nodes, Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]  # nodes, bytes, places


class TerminalTransitions:
    """The tokens from one state of a terminal: a branch for each first byte."""

    def __init__(self, branches: list[tuple[Branch, int]]):
        """`branches` holds with each branch the characters that its first byte ends: 0 or 1."""
        self._branches = branches

    @cached_property
    def most(self) -> int:
        """The most characters that any node of the trie needs to the terminal's nearest end."""
        return max((branch.most + first for branch, first in self._branches), default=0)

    def doubtful(self, bounds: Bounds) -> int:
        """Return the number of nodes in branches where some may not reach the end in `bounds`."""
        shifted = self._shifted(bounds)
        return sum(branch.size for branch, each in shifted if not branch.all_fit(each))

    def tokens(self, bounds: Bounds) -> Int32[np.ndarray, " tokens"]:
        """Return the tokens after which the end can be reached within `bounds`."""
        return _joined([branch.tokens(each) for branch, each in self._shifted(bounds)])

    def ends(self, bounds: Bounds) -> Nodes:
        """Return the nodes at which the terminal may end, and a token may continue after it."""
        return _joined([branch.ends(each) for branch, each in self._shifted(bounds)])

    def costs(self, bounds: Bounds) -> Costs:
        """Return the nodes that can reach the end, the fewest bytes to it, and their places."""
        found: list[Costs] = []
        numbers: dict[Scanner | LiteralScanner, int] = {}  # shared branches have other scanners
        for (branch, first), (_, each) in zip(self._branches, self._shifted(bounds), strict=True):
            nodes, costs, places = branch.costs(each, first)
            other = numbers.setdefault(branch.scanner, len(numbers))
            found.append((nodes, costs, places + (other << _SCANNER)))
        nodes, costs, places = zip(*found, strict=True) if found else ((), (), ())
        return (
            _joined([*nodes]),
            _joined([*costs]).astype(np.int64),
            _joined([*places]).astype(np.int64),
        )

    def _shifted(self, bounds: Bounds) -> Iterator[tuple[Branch, Bounds]]:
        """Yield the branches with the bounds that are left after their first byte."""
        low, high = bounds
        if bounds == (0, None):
            return ((branch, bounds) for branch, _ in self._branches)
        return (
            (branch, (low - first, None if high is None else high - first))
            for branch, first in self._branches
        )


class TerminalTokens:
    """The cached tokens of one terminal, over one vocabulary."""

    def __init__(self, scanner: Scanner | LiteralScanner, all: "Terminals", trie: Trie, size: int):
        self._scanner, self._all, self._trie, self._size = scanner, all, trie, size
        self._table = WalkTable(lambda s: _moves(scanner, s))  # without `self`: no reference cycle
        self._stopping = WalkTable(
            lambda s: [] if all.reads_any_text(scanner, s) else _moves(scanner, s)
        )
        self._branches: dict[tuple[int, int, bool], Branch] = {}  # by node, state, counting
        self._transitions: dict[tuple[int, bool], TerminalTransitions] = {}
        self.forget_sets()

    def forget(self) -> None:
        """Clear all caches except the tables, which are small."""
        self._branches.clear()
        self._transitions.clear()
        self.forget_sets()

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
            self._all.hold(self._words[key].nbytes)
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
            self._all.hold(words.nbytes + ends.nbytes)
        return self._below[key]

    def costs(self, state: int, bounds: Bounds, meter: Meter) -> Costs:
        return self._at(state, bounds, meter).costs(bounds)

    def ends(self, state: int, bounds: Bounds, meter: Meter) -> Nodes:
        """Return `TerminalTransitions.ends` of `state`."""
        key = state, bounds
        if key not in self._ends:
            self._ends[key] = self._at(state, bounds, meter).ends(bounds)
            self._all.hold(self._ends[key].nbytes)
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
                self._all.hold(_NODE * branch.size)
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


def _moves(scanner: Scanner | LiteralScanner, state: int) -> list[tuple[int, int, int, bool]]:
    return [(low, high, to, scanner.counts(state, to)) for low, high, to in scanner.moves(state)]


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
        if self._held > _MOST:
            for known in self._tokens.values():
                known.forget_sets() if known in self._any else known.forget()
            self._held = 0


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)
