"""What `grammar` raises on purpose."""


class GrammarError(Exception):
    """Root of this package's errors: catch it to catch them all."""


class InvalidGrammarError(GrammarError, ValueError):
    """A constraint that does not compile. The user's to fix: it says what, where, and why."""

    def __init__(self, kind: str, reason: str, where: str = ""):
        super().__init__(f"{kind}{f' at {where}' if where else ''}: {reason}")
        self.kind, self.reason, self.where = kind, reason, where


class InvalidValueError(GrammarError, ValueError):
    """A text that is no value of its schema."""


class DeadEndError(GrammarError):
    """The grammar goes on, but no token of the vocabulary does."""
