"""A compiled grammar, and what is learnt of its states as requests pass them.

It is shared by the requests that use the grammar. Knows tokens, but no request and no canvas.
"""

import pickle
from collections.abc import Callable
from functools import cached_property
from itertools import islice
from sys import maxsize

import numpy as np

from dlm.grammar.masks.bits import GrammarMasks, Mask, packed, tokens_in
from dlm.grammar.parse.earley import Parser, State
from dlm.grammar.parse.keys import Apart, ApartText, Keys, Way
from dlm.grammar.parse.limits import LimitedCache, Meter
from dlm.grammar.parse.network import Network
from dlm.grammar.parse.remainders import NEVER, FewestTokens, Remainders
from dlm.grammar.parse.state_masks import Exploration, Following, StateMasks
from dlm.grammar.parse.terminal_masks import Terminals
from dlm.grammar.vocabulary import Vocabulary

_EDGE_BYTES, _STATE_BYTES = 200, 1500  # of Python objects, roughly
_COMPLETIONS = 4096  # that are remembered
_FARTHEST = 1 << 16  # states of which it is remembered how far a token may lead from the end
_COUNTED = 1 << 18  # bytes of a completion whose tokens are counted
BEGUN = 64  # bytes that are spelled of one that is known to fit
_DOUBTFUL, _ONE_BY_ONE = 1024, 256  # groups of tokens, or tokens, of which each is looked at
_TEXTS = 64  # completions that are begun, and gone on with
_FOLLOWINGS = 4  # states of which it is kept what follows: of 262,144 tokens, 6 MB
_CLOSINGS = 256  # sets of tokens: of 262,144, 8 MB
_FEW = 32  # tokens of a text that is looked for where none is known


class Compiled:
    """Not for several threads at once."""

    def __init__(
        self,
        network: Network,
        vocabulary: Vocabulary,
        terminals: Terminals,
        checked: bool = False,
    ):
        """`checked`: it is wider than what it was made of, and a finished value is to be checked.

        Raises `GrammarError` for a grammar whose first state is too large.
        """
        self.vocabulary, self.meter, self.checked = vocabulary, Meter(), checked
        self.parser = Parser(network, terminals.scanner, self.meter)
        self.masks = GrammarMasks(len(vocabulary))
        self._allowed = StateMasks(self.parser, vocabulary, terminals, self.masks, self.meter)
        self._network = network
        self.free_keys = network.free_keys  # the text is JSON, and no key may come twice
        self.few_keys = network.few_keys  # and there may be no other
        self.apart = Apart(self.parser, self.meter)
        self.runs_out = (
            self.few_keys or self.apart.distinct
        )  # of keys or items there may be no more
        self._ways = LimitedCache[tuple[State, Keys], Way | None](_COMPLETIONS)
        self.remainders = Remainders(self.parser, vocabulary, self.meter)
        self._completions = LimitedCache[tuple[State, Keys], list[int] | None](_COMPLETIONS)
        self._texts = LimitedCache[tuple[State, Keys], ApartText](_TEXTS)  # that are begun
        self._followings = LimitedCache[State, tuple[Following, bool]](_FOLLOWINGS)
        # By state, object keys and budget: the tokens that leave room for the rest.
        self.closings = LimitedCache[tuple[State, Keys | None, int], np.ndarray | None](_CLOSINGS)
        # To the end after any token that may follow, by state: tokens, and bytes.
        self._farthest, self._near = (
            LimitedCache[State, int](_FARTHEST),
            LimitedCache[State, int](_FARTHEST),
        )

    @property
    def nbytes(self) -> int:
        """About what it takes in memory by now."""
        learnt = _STATE_BYTES * len(self.parser) + self.masks.nbytes + self.remainders.nbytes
        kept = sum(words.nbytes for words in self.closings.values() if words is not None)
        kept += sum(array.nbytes for found, _ in self._followings.values() for array in found)
        return _EDGE_BYTES * len(self._network.edges) + learnt + kept

    @cached_property
    def packed(self) -> bytes:
        """The grammar without what was learnt of it, for a `Compiler` of another process that has
        the same vocabulary: its `unpack` takes a moment where a compile may take seconds."""
        return pickle.dumps((self._network, self.checked))

    def after(self, state: State, token: int) -> State | None:
        """The state behind a token that is no stop; None where the grammar refuses it."""
        return self.parser.after(state, token, self.vocabulary.pieces[token])

    def keys_after(self, state: State, onward: State, keys: Keys, piece: bytes) -> Keys | None:
        """The keys after `piece`, which leads from `state` to `onward`.

        None where a key or an item comes twice, or where none is left but those that are there.
        """
        found = self.apart.after(state, keys, piece)
        if found is None or not self.runs_out or not found.at_risk:
            return found
        return found if self.way(onward, found) is not None else None

    def way(self, state: State, keys: Keys) -> Way | None:
        """A way to a key or an item that is not there yet; None: none is found."""
        key = state, keys
        if key not in self._ways:
            self._ways[key] = self.apart.way(state, keys)
        return self._ways[key]

    def suspects(self, keys: Keys, words: np.ndarray) -> list[int]:
        """The tokens of `words` after which there may be no `keys_after`."""
        vocabulary, quoted = self.vocabulary, self.vocabulary.quoted
        found = keys.dangers(quoted) if self.few_keys else keys.suspects(quoted)
        if self.runs_out:
            found = found.union(*map(vocabulary.beginnings, keys.taken))
        held = {t for t in found if words[t >> 5] >> (t & 31) & 1}
        if self.apart.distinct:
            held.update(tokens_in(words & keys.item_suspects(quoted)).tolist())
        return sorted(held)

    def mask(self, state: State) -> Mask:
        """The tokens that may follow at `state`, stops where the text may end."""
        return self._allowed.mask(state)

    def exploration(self) -> Exploration:
        """Of its terminals: what fills their part of the masks."""
        return Exploration(self._network, self._allowed.tokens, self.meter)

    def known_mask(self, state: State, keys: Keys | None) -> Mask | None:
        """The mask where an object has `keys`, if a matcher has asked for it before."""
        known = self.masks.known
        mask = known.get(state)
        if mask is None or mask < 0 or not keys or not (keys.doubtful or self.apart.distinct):
            return mask
        return known.get((mask, keys))

    def closing(self, state: State, tokens: int) -> np.ndarray | None:
        """The tokens after which the text can be completed in `tokens` more; None: all of them.

        As packed bits. Where object keys are free, `closing_apart` says it.
        """
        if self._farthest.get(state, maxsize) <= tokens:
            return None
        following, all_end = self._following(state)
        sure = following.costs <= tokens if self.vocabulary.spells_every_byte else None
        farthest, fitting = 0, []
        groups = [*following.groups(None if sure is None else ~sure)]
        for group, cost in groups:
            onward = self.after(state, int(group[0]))
            needed = NEVER if onward is None or not self._counted(cost) else self.least(onward)
            farthest = max(farthest, needed)
            if needed <= tokens:
                fitting.append(group)
        self.meter.add(len(groups))
        if all_end:
            known = 0 if sure is None else int(following.costs[sure].max(initial=0))
            self._farthest[state] = max(farthest, known)
            if farthest <= tokens:
                return None
        return self._members(following, sure, fitting)

    def closing_apart(
        self, state: State, sure_bytes: int, fits: Callable[[int], bool], in_key: bool
    ) -> np.ndarray | None:
        """The same where keys are free: tokens with at most `sure_bytes` to the end fit for sure,
        and others if they `fits`. `in_key`: each token is asked for, since each makes another key.
        """
        if self._near.get(state, maxsize) <= sure_bytes:
            return None
        following, all_end = self._following(state)
        sure = following.costs <= sure_bytes if self.vocabulary.spells_every_byte else None
        if all_end and sure is not None and sure.all():
            self._near[state] = int(following.costs.max(initial=0))
            return None
        doubtful = following.groups(None if sure is None else ~sure, apart=in_key)
        groups = [*islice(doubtful, _ONE_BY_ONE if in_key else _DOUBTFUL)]
        fitting = [group for group, cost in groups if self._counted(cost) and fits(int(group[0]))]
        self.meter.add(len(groups))
        return self._members(following, sure, fitting)

    def _following(self, state: State) -> tuple[Following, bool]:
        """Return `StateMasks.following`, kept for a look that is cut short and goes on."""
        if state not in self._followings:
            self._followings[state] = self._allowed.following(state)
        return self._followings[state]

    def _members(
        self, following: Following, sure: np.ndarray | None, fitting: list[np.ndarray]
    ) -> np.ndarray:
        members = np.zeros(len(self.vocabulary), dtype=bool)
        if sure is not None:
            members[following.tokens[sure]] = True
        for group in fitting:
            members[group] = True
        return packed(members)

    def closes_within(self, state: State, tokens: int) -> bool:
        """The text can be completed in `tokens` tokens, its stop not counted."""
        decided = self.decided_by_bytes(state, tokens, state.cost or 0)
        return self.least(state) <= tokens if decided is None else decided

    def decided_by_bytes(self, state: State, tokens: int, most: int) -> bool | None:
        """Whether a text that takes at most `most` tokens fits, if bytes tell; None: they do not.

        A text that is too long to be counted fits if its bytes do.
        """
        if state.cost is None or self.fewest_possible(state) > tokens:
            return False
        if most <= tokens and self.vocabulary.spells_every_byte:
            return True
        return None if self._counted(state.cost) else False

    def least(self, state: State) -> int:
        """The fewest tokens that are known to complete the text: exact for the fewest bytes."""
        plain = self.remainders.tokens(state)
        other = self._of_fewest_tokens.get(state) if plain else None
        return plain if other is None else min(plain, len(other))

    def shortest_completion(self, state: State, tokens: int = maxsize) -> list[int] | None:
        """The tokens of a shortest text to the end, its stop not counted; None: there is none.

        The shortest in bytes, if it is of at most `tokens` tokens, else in tokens.
        """
        needed = self.remainders.tokens(state)
        if needed > tokens or needed >= NEVER:
            plain = None if needed >= NEVER else self.begun(state, maxsize)
            return self._of_fewest_tokens.get(state, plain)
        return self.begun(state, maxsize)

    def begun(self, state: State, most: int = BEGUN) -> list[int] | None:
        """The first `most` tokens, or all, of the shortest text in bytes; None: none spell it."""
        if state.cost is None or self.remainders.tokens(state) >= NEVER:
            return None
        remainder = self.remainders.of(state)
        return [] if remainder is None else remainder.spelled(self.vocabulary, most)[0]

    def counts(self, state: State) -> bool:
        """Whether the tokens of a shortest completion are counted: it is not too long for that."""
        return state.cost is None or self._counted(state.cost)

    def fewest_possible(self, state: State) -> int:
        """No completion takes fewer tokens: each is at most as long as the longest one."""
        return -(-(state.cost or 0) // max(1, self.vocabulary.longest))

    def spelled_apart(self, state: State, keys: Keys) -> list[int] | None:
        """The tokens of a short text to the end where an object has `keys`, or an array items.

        No key and no distinct item comes twice in it. None: there is none.
        """
        key = state, keys
        if key not in self._completions:
            found = self._text(state, keys).written(maxsize)
            self._completions[key] = None if found is None else self.vocabulary.fewest(found)
            self._texts.pop(key, None)
        return self._completions[key]

    def begun_apart(self, state: State, keys: Keys) -> list[int] | None:
        """The first tokens of that text, spelled apart from what comes after them."""
        found = self._text(state, keys).written(BEGUN)
        return None if found is None else self.vocabulary.fewest(found)

    def _text(self, state: State, keys: Keys) -> ApartText:
        key = state, keys
        if key not in self._texts:
            self._texts[key] = ApartText(self.parser, self.apart, self.way, self.meter, key)
        return self._texts[key]

    def _counted(self, cost: int) -> bool:
        return cost <= _COUNTED

    @cached_property
    def _of_fewest_tokens(self) -> dict[State, list[int]]:
        """A way through the whole grammar in fewer tokens than the shortest text's, by state."""
        steps = self._fewest.path()
        said = [token for _, token in steps]
        return {state: said[i:] for i, (state, _) in enumerate(steps)}

    @cached_property
    def _fewest(self) -> FewestTokens:
        """The search for such a way, which may take more than one look."""
        start = self.parser.start
        known = self.remainders.tokens(start) if self.counts(start) else NEVER
        most = _FEW if known == NEVER else known - 1
        return FewestTokens(self.parser, self.vocabulary, self.meter, most)
