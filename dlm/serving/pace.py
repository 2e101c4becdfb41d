"""The pace of large bodies: beside a busy engine one piece of one body is received for each step.

To receive bytes takes the interpreter and a processor, and the network alone bounds what a client
sends. A step is the measure instead of a time: however fast the machine is, other requests keep the
same part of it. This module knows neither bodies nor engines.
"""

import asyncio

from dlm.serving.turns import Turns

PIECE = 1 << 18  # bytes of a body that are received for a step


class Pace:
    """Callers that wait until they may receive another piece, in the event loop of the engine."""

    def __init__(self):
        self.busy = False  # whether steps follow; written by the thread that steps
        self._turns = Turns()

    @property
    def awaited(self) -> bool:
        """Whether some caller waits. May be called in any thread."""
        return bool(self._turns)

    async def next_piece(self, client: str) -> None:
        """Wait for the turn of `client` if the engine is busy."""
        if not self.busy:
            return
        turn = self._turns.join(client)
        try:
            await turn
        except asyncio.CancelledError:
            if not self._turns.leave(client, turn):
                self._turns.give()
            raise

    def note_step(self) -> None:
        """Let one caller go on."""
        self._turns.give()

    def note_rest(self) -> None:
        """Let all callers go on: no step follows by itself."""
        while self._turns.give():
            pass
