"""A compiled grammar: its parser, the masks of its states, and their completions.

The requests that use the grammar share it. The module knows tokens, but no request and no canvas.
"""

import pickle
from collections.abc import Mapping
from functools import cached_property

from dlm.grammar.limits import LimitedCache, Meter
from dlm.grammar.masks.table import GrammarMasks, Mask
from dlm.grammar.parse.closing import Closing
from dlm.grammar.parse.earley import Parser
from dlm.grammar.parse.exploration import Exploration
from dlm.grammar.parse.keys import Keys
from dlm.grammar.parse.network import Network
from dlm.grammar.parse.state_masks import StateMasks
from dlm.grammar.parse.states import State
from dlm.grammar.parse.steps import Steps
from dlm.grammar.parse.stops import Stops
from dlm.grammar.parse.terminal_tokens import Terminals
from dlm.grammar.parse.unmarked import Unmarked
from dlm.grammar.vocabulary.vocabulary import Vocabulary

_COMPARED = 3  # arrays and objects that an item is compared with, in the time to read one token
_EDGE_BYTES, _STATE_BYTES, _MOVE_BYTES = 200, 2500, 250  # approximate memory of Python objects
_MOVES = 1 << 14  # cached moves

Move = tuple[State, int, Mask | None]
"""A token read at a state: the state after it, bytes from there to the text's end, and the mask of
the state before it, if it is known."""


class Compiled:
    """A grammar compiled for a vocabulary. Not thread-safe."""

    def __init__(
        self,
        network: Network,
        vocabulary: Vocabulary,
        terminals: Terminals,
        checked: bool = False,
        enforced: bool = True,
    ):
        """`checked`: finished values must be checked, as the grammar may accept more than its spec;
        `enforced`: it accepts no more, and the check only confirms that.

        Raises `GrammarError` if the grammar's first state is too large.
        """
        self.vocabulary, self.meter = vocabulary, Meter()
        self.checked, self.enforced = checked, enforced
        self.parser = Parser(network, terminals.scanner, self.meter)
        self.masks = GrammarMasks(len(vocabulary))
        self.stops = Stops(vocabulary.stops, self.masks)
        self.state_masks = StateMasks(
            self.parser, vocabulary, terminals, self.masks, self.stops, self.meter
        )
        self._network = network
        self.steps = Steps(self.parser, vocabulary, self.meter)
        self.closing = Closing(self.parser, self.steps, self.state_masks, vocabulary, self.meter)
        self.unmarked = Unmarked(self.parser, self.steps, self.closing, vocabulary, self.meter)
        self._moves = LimitedCache[tuple[State, int], Move](_MOVES)  # by state and token
        self._moves_age = 0  # age of the masks that they name

    @property
    def nbytes(self) -> int:
        """Approximate memory in use."""
        states = (
            _STATE_BYTES * len(self.parser.states) + self.masks.nbytes + self.state_masks.nbytes
        )
        caches = self.steps.nbytes + self.closing.nbytes + _MOVE_BYTES * len(self._moves)
        return self._network_bytes + states + caches

    @cached_property
    def _network_bytes(self) -> int:
        automata = sum(
            len(terminal) if isinstance(terminal, bytes) else terminal.automaton.nbytes
            for terminal in self._network.terminals
        )
        return _EDGE_BYTES * len(self._network.edges) + automata

    @cached_property
    def packed(self) -> bytes:
        """The pickled grammar without its caches, for `Compiler.unpack` in another process."""
        return pickle.dumps((self._network, self.checked, self.enforced))

    def exploration(self) -> Exploration:
        """Return an exploration of the grammar's terminals, which fills caches of masks."""
        return Exploration(self._network, self.state_masks.tokens, self.meter)

    @property
    def moves(self) -> Mapping[tuple[State, int], Move]:
        """The moves that `move` has returned since masks were trimmed, by state and token."""
        if self._moves_age != self.masks.age:
            self._moves.clear()
            self._moves_age = self.masks.age
        return self._moves

    def move(self, state: State, token: int) -> Move | None:
        """Return the move from `state` by a token other than a stop, and keep it; None if the
        grammar refuses the token, or no end can be reached after it."""
        onward = self.steps.after(state, token)
        if onward is None or onward.cost is None:
            return None
        move = onward, onward.cost, self.masks.known.get(state)
        if move[2] is not None:
            self._moves[state, token] = move
        return move

    def known_mask(self, state: State, keys: Keys | None) -> Mask | None:
        """Return the mask of `state` and `keys` if it is in the cache, else None."""
        rows = self.masks.known
        mask = rows.get(state)
        if mask is None or mask < 0 or not keys or not self.steps.are_watched(keys):
            return mask
        return rows.get((mask, keys))

    def mask(self, state: State, keys: Keys | None) -> Mask:
        """Return the row of the tokens that may follow `state` and `keys`, and of the stops."""
        mask = self.known_mask(state, keys)
        if mask is None:
            mask = self._unrepeated(self.state_masks.mask(state), keys, state)
        return mask

    def _unrepeated(self, mask: Mask, keys: Keys | None, state: State) -> Mask:
        """Return the row `mask` of `state` without tokens that would repeat a key or an item."""
        if keys is None or mask < 0 or not self.steps.are_watched(keys):
            return mask
        row = self.masks.known.get((mask, keys))
        if row is None:
            suspects = self.steps.suspects(keys, self.masks.words(mask))
            compared = keys.compared // _COMPARED if suspects else 0
            self.meter.spend(1 + len(suspects) * (1 + compared) // 2)
            refused = [t for t in suspects if self.steps.read(state, keys, t) is None]
            row = self.masks.known[mask, keys] = self.masks.changed(mask, fewer=refused)
        return row
