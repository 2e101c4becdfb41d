"""What `dlm` raises on purpose, and what it makes of what others raise."""

import logging
import traceback

from dlm.grammar.errors import CrashError, GrammarError
from dlm.models.errors import ModelError
from dlm.root_error import DlmError

_LOG = logging.getLogger("dlm")


class RequestError(DlmError, ValueError):
    """A request that cannot be served as it stands; its text is what an HTTP 400 should carry."""

    def __init__(self, message: str, *, field: str | None = None):
        """`field` is the one that it is about, where its text does not begin with that name."""
        super().__init__(message)
        self.field = field


class QueueFullError(DlmError):
    """Too many requests wait already; later there may be room for this one."""


class UnavailableError(DlmError):
    """Nothing is served any more: the engine has failed, or is being shut down."""


def failure(error: Exception) -> DlmError:
    """Return what ends one request: a foreign error is named, and is the cause.

    One that no user can have caused is a bug: it is logged, with its traceback, in words: a record
    may be kept for long, and is not to keep what the frames hold.
    """
    if isinstance(error, DlmError) and not isinstance(error, GrammarError | ModelError):
        return error
    if not isinstance(error, GrammarError) or isinstance(error, CrashError):
        _LOG.error("a request failed by a bug\n%s", "".join(traceback.format_exception(error)))
    name = "" if isinstance(error, GrammarError) else f"{type(error).__name__}: "
    problem = DlmError(f"{name}{str(error)[:500]}")
    problem.__cause__ = error
    return problem


def forget_frames(error: BaseException | None) -> None:
    """Let go of all that the functions which `error` came through had in hand, such as the logits
    of a pass: an error may be kept for long. Where it came from stays, as a note in words."""
    while error is not None:
        if error.__traceback__ is not None:
            error.add_note("".join(traceback.format_tb(error.__traceback__)).rstrip())
            error.__traceback__ = None
        error = error.__cause__ or error.__context__
