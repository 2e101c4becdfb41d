"""Counts work, so that no grammar takes more of a step than its share."""

from sys import maxsize

from dlm.grammar.errors import Unfinished


class Meter:
    """Without a limit until `begin` is called."""

    def __init__(self):
        self.left = maxsize

    def begin(self, units: int = maxsize) -> None:
        """A unit is about a microsecond of work."""
        self.left = units

    def spend(self, units: int) -> None:
        """Raises `Unfinished`, before the work is done, if nothing is left."""
        if self.left <= 0:
            raise Unfinished("a look at the grammar takes more than its share of a step")
        self.left -= units
