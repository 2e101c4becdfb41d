"""Errors that `dlm` raises on purpose, and conversion of foreign ones."""

import copy
import logging
import traceback

from dlm.grammar.errors import CrashError, GrammarError
from dlm.models import ModelError
from dlm.root_error import DlmError

_LOG = logging.getLogger("dlm")


class RequestError(DlmError, ValueError):
    """Request that cannot be served; its text is meant for the body of an HTTP 400."""

    def __init__(self, message: str, *, field: str | None = None):
        """`field` is the request's field that is wrong, if the text does not begin with it."""
        super().__init__(message)
        self.field = field

    def reworded(self, message: str, field: str | None = None) -> "RequestError":
        """Return the same error with another message and field."""
        other = copy.copy(self)
        other.args, other.field = (message,), field
        return other


class ContextLengthError(RequestError):
    """Request whose prompt, or whose prompt and answer, are longer than the model's context."""

    def __init__(
        self,
        problem: str,
        *,
        field: str | None = None,
        most: int = 0,
        longest_prompt: int = 0,
        prompt: int = 0,
        counted: bool = True,
    ):
        """`most` is the length of the context in tokens, `longest_prompt` that of the longest
        prompt, and `prompt` that of this one. If it is not `counted`, it has at least `prompt`
        tokens."""
        message = f"This model's maximum context length is {most} tokens: {problem}"
        super().__init__(message if most else problem, field=field)
        self.most, self.longest_prompt = most, longest_prompt
        self.prompt, self.counted = prompt, counted


class TemplateError(DlmError):
    """Chat template of a checkpoint that cannot be compiled or rendered."""


class UndefinedLogitsError(DlmError):
    """Pass whose logits for a request are NaN or infinite."""

    def __init__(self) -> None:
        super().__init__(
            "the model's logits are NaN or infinite: its weights or its precision do not fit this "
            "prompt, so that no token can be chosen"
        )


class QueueFullError(DlmError):
    """Refusal of a request since too many wait; a later one may be accepted."""


class UnavailableError(DlmError):
    """Refusal of a request since the engine has failed or is being shut down."""


def failure(error: Exception) -> DlmError:
    """Return the error that ends one request; a foreign error is its cause, and is named. An error
    that no user can cause is a bug. It is logged with its traceback as text: a log record may be
    kept for long, and must not keep the objects of the frames alive."""
    if isinstance(error, DlmError) and not isinstance(error, GrammarError | ModelError):
        return error
    if not isinstance(error, GrammarError) or isinstance(error, CrashError):
        _LOG.error("a request failed by a bug\n%s", "".join(traceback.format_exception(error)))
    name = "" if isinstance(error, GrammarError) else f"{type(error).__name__}: "
    problem = DlmError(f"{name}{str(error)[:500]}")
    problem.__cause__ = error
    return problem


def forget_frames(error: BaseException | None) -> None:
    """Drop the frames of `error`, which hold objects such as a pass's logits: an error may be kept
    for long. Its traceback stays as a note in text."""
    while error is not None:
        if error.__traceback__ is not None:
            error.add_note("".join(traceback.format_tb(error.__traceback__)).rstrip())
            error.__traceback__ = None
        error = error.__cause__ or error.__context__
