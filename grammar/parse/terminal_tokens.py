"""The tokens that stay within one terminal, shared by all states and grammars that read it."""

from functools import cached_property
from weakref import WeakValueDictionary

import numpy as np

from dlm.grammar.limits import Meter
from dlm.grammar.masks.bits import as_numbers_if_few, token_words
from dlm.grammar.masks.trie import Nodes, Trie
from dlm.grammar.masks.walks import NODES_READ, Reach, Reached, TokenSet, WalkTable, spell
from dlm.grammar.parse.bounded_sets import CharacterCounts, counts_alone
from dlm.grammar.parse.branches import (
    NOT_EMPTY,
    UNBOUNDED,
    AnyText,
    Bounds,
    Branch,
    TerminalTransitions,
    branches,
    completed,
)
from dlm.grammar.parse.exceptions import COPIED, QUOTE, Exceptions, without
from dlm.grammar.parse.network import scanner_of
from dlm.grammar.parse.place_costs import PlaceCosts
from dlm.grammar.parse.scanner import CharacterRanges, LiteralScanner, Move, Scanner
from dlm.grammar.parse.unbounded_sets import Similar, UnboundedSets
from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.characters import EVERY
from dlm.grammar.regex.nodes import Spelling, Terminal
from dlm.grammar.regex.patterns import automaton_of

_WALKED, _LOOKED = 100, 1000  # trie nodes walked, or looked at, for a unit of work
_AT_ONCE, _GROUP = 32, 20  # branches built at once, and units of work for them
_BELOW = 5  # units of work for the tokens after another terminal
_NODE_BYTES, _BRANCH_BYTES = 20, 1500  # bytes of memory for a node, and for a branch without nodes
_SET_BYTES, _TERMINAL_BYTES = 300, 1000  # for a cached set without its members, and for a terminal
_MOST_BYTES = 256 << 20  # bytes of memory for all terminals
_TABLES = (WalkTable, Exceptions)
_ROOT = np.zeros(1, np.int32)  # the node of the trie where all tokens begin


class TerminalTokens:
    """The cached tokens of one terminal, over one vocabulary."""

    def __init__(self, scanner: Scanner | LiteralScanner, all: "Terminals", trie: Trie, size: int):
        self._scanner, self._all, self._trie, self._size = scanner, all, trie, size
        self.users = 0  # grammars
        self.used_at = 0  # the time of the last use, by the clock of `Terminals`
        self._any_text_moves: dict[int, list[Move]] = {}  # by the state with any text after it
        self._walk_bytes = 0
        self._branches: dict[tuple[int, int, bool], Branch] = {}  # by node, state, counting
        self._transitions: dict[tuple[int, bool], TerminalTransitions] = {}
        self.forget_sets()

    @cached_property
    def _table(self) -> WalkTable:
        scanner = self._scanner  # the table refers to no `self`: there is no reference cycle
        return WalkTable(scanner.moves, scanner.final, scanner.boundary)

    @cached_property
    def _stopping(self) -> WalkTable:
        scanner, terminals = self._scanner, self._all
        return WalkTable(
            lambda s: () if terminals.reads_any_text(scanner, s) else scanner.moves(s),
            scanner.final,
            scanner.boundary,
        )

    @property
    def nbytes(self) -> int:
        """Approximate memory of the caches, the tables and the scanner."""
        values = list(vars(self).values())  # another thread may add some meanwhile
        tables = (value.nbytes for value in values if isinstance(value, _TABLES))
        return _TERMINAL_BYTES + self.cached_bytes + self._scanner.nbytes + sum(tables)

    @property
    def cached_bytes(self) -> int:
        """Approximate memory of the caches."""
        return self._walk_bytes + self._set_bytes

    def _hold(self, walks: int, sets: int = 0) -> None:
        """Count more bytes of caches."""
        self._walk_bytes += walks
        self._set_bytes += sets
        self._all.hold(walks + sets)

    def forget(self) -> None:
        """Clear all caches except the tables, which are small."""
        self._branches.clear()
        self._transitions.clear()
        self.forget_sets()
        self._walk_bytes = 0

    def forget_sets(self) -> None:
        """Clear the sets of tokens, but keep the walks they were made from."""
        self._sets: dict[tuple[int, Bounds], TokenSet] = {}
        self._unbounded = UnboundedSets(self._trie, self._size)
        self._below: dict[bytes, TokenSet] = {}
        self._set_bytes = 0

    def clamped(self, state: int, bounds: Bounds, meter: Meter) -> Bounds:
        """Return bounds that allow the same tokens, one for many, so that masks are shared."""
        if bounds == UNBOUNDED or isinstance(self._scanner, LiteralScanner):
            return UNBOUNDED
        low, high = bounds
        # No token has as many characters, not even with a shortest text to an end after it.
        beyond = len(self._trie.levels) + 2 * len(self._scanner.automaton.edges)
        if high is not None and high >= beyond + max(low - 1, 0):
            high = None
        if low <= 1 and high is None:
            return NOT_EMPTY if low == 1 else UNBOUNDED
        if (counts := self._counts(state, (low, high))) is not None:
            return counts.clamped((low, high), self._scanner.quoted)
        return self._scanner.clamped(low, high, self._at(state, bounds, meter).most)

    @property
    def start(self) -> int:
        return self._scanner.start

    def explore(self, state: int, bounded: bool, meter: Meter) -> list[int]:
        """Compute the tokens of `state`, and the transitions for bounded masks if `bounded`.

        Returns the next states. States within a character are skipped, since they are quick.
        """
        scanner = self._scanner
        if isinstance(scanner, Scanner) and (scanner.boundary[state] or state == scanner.start):
            self.sets(state, UNBOUNDED, meter)
            if bounded:
                self._at(state, (0, 0), meter)
        meter.add(1)
        return [to for _, _, to in scanner.moves(state)]

    def sets(self, state: int, bounds: Bounds, meter: Meter) -> TokenSet:
        """Return the tokens that stay within the terminal, and the nodes at which it may end."""
        self.used_at = self._all.clock
        key = state, bounds
        token_set = self._sets.get(key)
        if token_set is None:
            if isinstance(self._scanner, LiteralScanner):
                token_set = spell(self._trie, _ROOT, self._scanner.completion(state))
            elif bounds == UNBOUNDED:
                token_set = self._without_exceptions(state, meter) or self._unbounded_set(
                    state, meter
                )
            elif bounds == NOT_EMPTY:
                token_set = self._not_empty_set(state, meter)
            elif (counts := self._counts(state, bounds)) is not None:
                meter.add(COPIED)
                token_set = counts.within(self.sets(state, UNBOUNDED, meter), bounds, self._size)
            else:
                transitions = self._at(state, bounds, meter)
                meter.spend(1 + transitions.doubtful(bounds) // _LOOKED)
                words = token_words(transitions.tokens(bounds), self._size)
                token_set = TokenSet(as_numbers_if_few(words), transitions.ends(bounds))
            self._sets[key] = token_set
            self._hold(0, _SET_BYTES + token_set.nbytes)
        return token_set

    def _unbounded_set(self, state: int, meter: Meter) -> TokenSet:
        moves = self._scanner.moves(state)
        return self._unbounded.token_set(
            state, moves, self._table, lambda: self._any_text_of(moves, meter), meter
        )

    def _not_empty_set(self, state: int, meter: Meter) -> TokenSet:
        """Return what is reached without an end before the first character."""
        scanner, trie = self._scanner, self._trie
        token_set, nodes = self.sets(state, UNBOUNDED, meter), _ROOT[:0]
        if isinstance(scanner, Scanner) and scanner.quoted:
            if state == scanner.start:
                nodes = trie.children_along(trie.children_along(_ROOT, QUOTE), QUOTE)
            elif scanner.between(state) is not None:
                nodes = trie.children_along(_ROOT, QUOTE)
        meter.add(COPIED)
        return without(token_set, nodes, trie, self._size)

    def _counts(self, state: int, bounds: Bounds) -> CharacterCounts | None:
        """Return counts of characters if they alone tell what `bounds` exclude; else None."""
        scanner, counts = self._scanner, self._all.counts
        if not counts or not isinstance(scanner, Scanner):
            return None
        if not counts_alone(scanner, state, bounds):
            return None
        return counts[scanner.quoted and state == scanner.start]

    @cached_property
    def _exceptions(self) -> Exceptions | None:
        """The exceptions of a terminal that takes any other text in quotes; else None."""
        scanner, shared = self._scanner, self._all.any_text.get(EVERY)
        if not isinstance(scanner, Scanner) or not scanner.quoted or shared is None:
            return None
        return None if shared.scanner is scanner else Exceptions.of(scanner.automaton)

    def _without_exceptions(self, state: int, meter: Meter) -> TokenSet | None:
        """Return what any text reaches, without exceptions; None if there are none to search for.

        Also None within a character, where the search does not begin.
        """
        scanner, exceptions = self._scanner, self._exceptions
        if exceptions is None or not isinstance(scanner, Scanner):
            return None
        any_text, nodes = self._all.any_text[EVERY], _ROOT
        shared, at = self._all.tokens(any_text.scanner), scanner.between(state)
        if state == scanner.start:
            base, at = shared.sets(shared.start, UNBOUNDED, meter), 0
            nodes = self._trie.children_along(nodes, QUOTE)
        elif at is not None:
            base = shared.sets(any_text.inside, UNBOUNDED, meter)
        else:
            return None
        return exceptions.token_set(base, nodes, at, self._trie, self._size, meter)

    def _any_text_of(self, moves: tuple[Move, ...], meter: Meter) -> Similar | None:
        """Return the tokens of any text, and its moves in this scanner's states.

        None if any text, as far as it is shared, follows none of the `moves`.
        """
        scanner = self._scanner
        if not isinstance(scanner, Scanner) or not scanner.quoted:
            return None
        for _, _, to in moves:
            any_text = self._all.any_text.get(scanner.repeated(to))
            if any_text is None:
                continue
            if any_text.scanner is scanner:
                return None
            if to not in self._any_text_moves:
                like = scanner.like(any_text.scanner, to)
                inside = any_text.scanner.moves(any_text.inside)
                self._any_text_moves[to] = [(low, high, like[to]) for low, high, to in inside]
            token_set = self._all.tokens(any_text.scanner).sets(any_text.inside, UNBOUNDED, meter)
            return token_set, self._any_text_moves[to]
        return None

    def below(self, nodes: Nodes, meter: Meter) -> TokenSet:
        """Read the terminal from its start below `nodes` of the trie.

        Returns the tokens that stay within it, and the nodes at which it may end and a token may
        continue. These include `nodes` if its text may be empty.
        """
        key = nodes.tobytes()
        below = self._below.get(key)
        if below is None:
            meter.spend(_BELOW)
            if isinstance(self._scanner, LiteralScanner):
                meter.add(len(nodes) // NODES_READ)
                below = spell(self._trie, nodes, self._scanner.raw)
            else:
                below = self._read_below(nodes, meter)
            self._below[key] = below
            self._hold(0, _SET_BYTES + len(key) + below.nbytes)
        return below

    def _read_below(self, nodes: Nodes, meter: Meter) -> TokenSet:
        scanner, trie = self._scanner, self._trie
        if (exceptions := self._exceptions) is not None:
            quoted = trie.children_along(nodes, QUOTE)
            if trie.are_apart(quoted):
                base = self._all.tokens(self._all.any_text[EVERY].scanner).below(nodes, meter)
                return exceptions.token_set(base, quoted, 0, trie, self._size, meter)
        reach = Reach(np.zeros(-(-self._size // 32), np.uint32))
        self._table.read(trie, nodes, scanner.start, reach, below=True)
        meter.add(reach.nodes // NODES_READ)
        if scanner.final[scanner.start]:
            reach.ends.append(nodes)
        return reach.token_set()

    def place_costs(self, state: int, bounds: Bounds, meter: Meter) -> PlaceCosts:
        """Return the places that are reached from `state`, with no costs yet.

        They serve all other `bounds` too if these bound the length, else no others.
        """
        return PlaceCosts(self._at(state, bounds, meter))

    def branch(self, node: int, start: bool, counting: bool, meter: Meter) -> Branch:
        """Return the branch of a child of the root, for a terminal of any text.

        `start`: the text is read from before its opening quote, else from within.
        """
        (_, _, inside), *_ = self._scanner.moves(self._scanner.start)
        self._at(self._scanner.start if start else inside, (0, 0) if counting else UNBOUNDED, meter)
        return self._branches[node, inside, counting]

    def _at(self, state: int, bounds: Bounds, meter: Meter) -> TerminalTransitions:
        key = state, bounds != UNBOUNDED
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
            walked = None
            if sharing is not None:
                walked = self._stopping.walk(self._trie, some, counting)
                start = state == scanner.start
                walked = completed(self._all.any_text, sharing, *walked, start)
            reached, owner = walked or self._table.walk(self._trie, some, counting)
            meter.add(_GROUP)
            new_branches = branches(scanner, reached, owner, len(some), self._trie)
            for root, branch in zip(some, new_branches, strict=True):
                self._branches[*root, counting] = branch
                meter.add(branch.size // _WALKED)
                self._hold(_BRANCH_BYTES + _NODE_BYTES * branch.size)
        return TerminalTransitions(
            [(self._branches[*root, counting], before) for root, before in roots]
        )

    def _sharing(self, state: int, counting: bool, meter: Meter) -> Scanner | None:
        """Reuse the shared branches of any text where the rest of this terminal accepts any text.

        Returns the scanner; None if nothing can be shared: `state` is neither the start nor
        between two characters, the terminal is not quoted, or it takes any text itself.
        """
        scanner = self._scanner
        if not isinstance(scanner, Scanner) or not scanner.quoted:
            return None
        if not (scanner.boundary[state] or state == scanner.start):
            return None
        shared = self._all.any_text
        if any(text.scanner is scanner for text in shared.values()):
            return None
        for low, high, to in scanner.moves(state):
            if (any_text := shared.get(scanner.repeated(to))) is not None:
                terminal = self._all.tokens(any_text.scanner)
                for byte in range(low, high + 1):
                    if (node := self._trie.first_bytes.get(byte)) is not None:
                        branch = terminal.branch(node, state == scanner.start, counting, meter)
                        self._branches.setdefault((node, to, counting), branch)
        return scanner


class Terminals:
    """The terminals of all grammars over one vocabulary, each kept while a grammar uses it."""

    def __init__(self, trie: Trie, size: int):
        self._trie, self._size = trie, size
        self._held_bytes = 0  # bytes, with those of terminals that were dropped
        self.clock = 0  # masks
        self._scanners: WeakValueDictionary[Terminal | bytes, Scanner | LiteralScanner]
        self._scanners = WeakValueDictionary()
        self._tokens: WeakValueDictionary[Scanner | LiteralScanner, TerminalTokens]
        self._tokens = WeakValueDictionary()
        self.any_text: dict[CharacterRanges | None, AnyText] = {}
        self.counts: dict[bool, CharacterCounts] = {}  # of `any_text[EVERY]`; True: from its start
        self._any: list[TerminalTokens] = []  # kept, since they are shared

    def scanner(self, terminal: Terminal | bytes) -> Scanner | LiteralScanner:
        scanner = self._scanners.get(terminal)
        if scanner is None:
            scanner = self._scanners[terminal] = scanner_of(terminal)
        return scanner

    def tokens(self, scanner: Scanner | LiteralScanner) -> TerminalTokens:
        terminal = self._tokens.get(scanner)
        if terminal is None:
            terminal = self._tokens[scanner] = TerminalTokens(scanner, self, self._trie, self._size)
        return terminal

    def used(self, scanner: Scanner | LiteralScanner) -> TerminalTokens:
        """Return `tokens` of a scanner, and count one more grammar that uses them."""
        terminal = self.tokens(scanner)
        terminal.users += 1
        return terminal

    def keeps(self, terminal: TerminalTokens) -> bool:
        """Whether a terminal is shared by all grammars, and never dropped."""
        return terminal in self._any

    def share_any_text(self) -> None:
        """Walk the trie for any text and for any line, which takes .5 s at 262,144 tokens."""
        self._trie.prepare()
        for automaton in (Automaton.ANY, automaton_of(".*", True)):
            scanner = self.scanner(Terminal(automaton, 0, None, Spelling.QUOTED))
            if isinstance(scanner, Scanner):
                any_text, terminal = AnyText(scanner, self._trie), self.tokens(scanner)
                self.any_text[any_text.characters] = any_text
                if any_text.characters == EVERY:
                    self.counts = {
                        start: CharacterCounts(scanner, any_text.reached(start), self._trie)
                        for start in (False, True)
                    }
                self._any.append(terminal)
                for to in terminal.explore(scanner.start, True, Meter()):
                    terminal.explore(to, True, Meter())

    def reads_any_text(self, scanner: Scanner | LiteralScanner, state: int) -> bool:
        """Whether the rest of the text from `state` on is that of a shared `AnyText`."""
        return isinstance(scanner, Scanner) and scanner.repeated(state) in self.any_text

    @property
    def cached_bytes(self) -> int:
        """Approximate memory of the caches of all terminals that are in use."""
        return sum(terminal.cached_bytes for terminal in self._tokens.values())

    def hold(self, count: int) -> None:
        """Count `count` more bytes of caches."""
        self._held_bytes += count

    def trim(self) -> None:
        """Clear caches between masks if they are too large: those of the terminals that were not
        used for longest, to half of the limit. The shared walks are kept."""
        self.clock += 1
        if self._held_bytes <= _MOST_BYTES:
            return
        self._held_bytes = self.cached_bytes
        if self._held_bytes <= _MOST_BYTES:
            return
        for terminal in sorted(self._tokens.values(), key=lambda terminal: terminal.used_at):
            before = terminal.cached_bytes
            terminal.forget_sets() if terminal in self._any else terminal.forget()
            self._held_bytes -= before - terminal.cached_bytes
            if self._held_bytes <= _MOST_BYTES // 2:
                break
