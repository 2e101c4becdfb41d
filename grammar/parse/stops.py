"""Stop tokens: where a text may end, and the tokens that end it."""

from dlm.grammar.masks.table import GrammarMasks, Mask
from dlm.grammar.parse.states import State


class Stops:
    """The stop tokens of one grammar's texts."""

    def __init__(self, stops: tuple[int, ...], masks: GrammarMasks):
        self.all, self._masks = frozenset(stops), masks

    def after(self, state: State) -> frozenset[int]:
        """Return the stops that are allowed at `state`: all where the text may end, or none."""
        return self.all if state.may_end else frozenset()

    @property
    def mask(self) -> Mask:
        """The row of the stops alone, for a complete text that ends here."""
        return self._masks.changed(None, more=self.all)
