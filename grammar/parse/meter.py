"""Counts work, so that no grammar takes more of a step than its share."""

from sys import maxsize

from dlm.grammar.errors import Unfinished


class Meter:
    """Without a limit until `begin` is called. A unit is about ten microseconds of work."""

    def __init__(self):
        self.spent = 0  # units since it was made
        self._limit = maxsize

    def begin(self, units: int = maxsize) -> None:
        """From now on so many units may be spent."""
        self._limit = self.spent + units

    def spend(self, units: int) -> None:
        """Raises `Unfinished`, before the work is done, if nothing is left."""
        if self.spent >= self._limit:
            raise Unfinished("a look at the grammar takes more than its share of a step")
        self.spent += units

    def add(self, units: int) -> None:
        """Work that is done: whoever spends next may find that nothing is left."""
        self.spent += units
