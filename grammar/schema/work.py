"""How much work a schema may take, counted in steps of about 10 us. Knows nothing else."""

from dlm.grammar.errors import InvalidGrammarError

MOST_WORK = 60_000


class TooMuchWorkError(InvalidGrammarError):
    """More work than it may take."""


class Work:
    """Counts up to `most` steps."""

    def __init__(self, most: int = MOST_WORK):
        self.most, self.done = most, 0

    def count(self, steps: int, where: str) -> None:
        """Raises `TooMuchWorkError`, which names the limit."""
        self.done += steps
        if self.done > self.most:
            reason = f"it takes more than {self.most} steps to read"
            raise TooMuchWorkError("JSON schema", reason, where or "/")
