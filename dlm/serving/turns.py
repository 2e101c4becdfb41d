"""Turns of callers in one event loop, shared among clients.

Each client has a queue of its own, and the clients take turns: one that sends much delays others
by one turn. This module does not know what a turn is for.
"""

import asyncio
from collections import OrderedDict, deque
from contextlib import suppress


class Turns:
    """Callers that wait for their turns, by client."""

    def __init__(self):
        # The client whose turn is next comes first.
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def __bool__(self) -> bool:
        """Whether some caller waits. May be called in any thread."""
        return bool(self._queues)

    def join(self, client: str) -> asyncio.Future[None]:
        """Return a future of the turn of a caller of `client`; to cancel it is to leave."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(client, deque()).append(turn)
        return turn

    def leave(self, client: str, turn: asyncio.Future[None]) -> bool:
        """Forget a caller that was cancelled while it waited for `turn`. Returns False if its turn
        came in the same moment: it is for another caller."""
        if not turn.cancelled():
            return False
        if (queue := self._queues.get(client)) is not None:
            with suppress(ValueError):  # it was about to be passed over
                queue.remove(turn)
            if not queue:
                del self._queues[client]
        return True

    def give(self) -> bool:
        """Give the next turn. Returns whether some caller has taken it."""
        while self._queues:
            client, queue = self._queues.popitem(last=False)
            turn = queue.popleft()
            if queue:
                self._queues[client] = queue  # as the last
            if not turn.done():
                turn.set_result(None)
                return True
        return False
