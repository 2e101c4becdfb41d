"""Who asks: it may go away before it has its answer, and is not told everything."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request

from dlm.errors import DlmError
from dlm.openai.errors import status_of

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Came:
    """A body that has arrived."""

    size: int  # bytes
    client: str  # who sent it, as `Guard.client` names it
    at: float  # when its request began to arrive, by `perf_counter`


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


async def while_there(
    request: Request, work: Coroutine[Any, Any, T], undo: Callable[[T], None] = lambda _: None
) -> T:
    """What `work` returns or raises; `ClientGoneError` if the client goes away before that. What it
    returns to nobody, since that was too late, is for `undo`."""

    def end(ended: asyncio.Task[T]) -> None:
        if not ended.cancelled() and ended.exception() is None:
            undo(ended.result())

    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError
        return working.result()
    except BaseException:
        working.add_done_callback(end)
        if not working.done():
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working
        raise
    finally:
        leaving.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def note(error: Exception) -> None:
    """Into the log goes what the client is not told."""
    if not isinstance(error, DlmError) or status_of(error) == 500:
        _LOG.error("a request failed", exc_info=error)
