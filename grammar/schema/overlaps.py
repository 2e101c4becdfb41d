"""The error for values that fit two schemas of `oneOf`."""

from dlm.grammar.schema.documents import TooMuchWorkError
from dlm.grammar.schema.formulas import Formula, pointer_of


class OverlapError(TooMuchWorkError):
    """Values that fit two schemas of `oneOf`, and that it takes too much work to leave out."""

    @classmethod
    def of(cls, formula: Formula, other: Formula, error: TooMuchWorkError) -> TooMuchWorkError:
        """Return the error for two schemas; `error` itself if it is about some within them."""
        if isinstance(error, cls):
            return error
        reason = (
            f"{error.reason}: values may fit both {pointer_of(formula)} and {pointer_of(other)}, "
            "and `oneOf` leaves these out; a required property with other constants in each of its "
            "schemas distinguishes them"
        )
        return cls("JSON schema", reason, error.where)
