"""A text that is read as it stands, byte by byte."""

from sys import maxsize

from dlm.grammar.parse.scanner import Move


class LiteralScanner:
    """Reads one text. A state is the number of bytes that were read."""

    start, quoted = 0, False

    def __init__(self, raw: bytes):
        self._raw = raw
        self.final = [False] * len(raw) + [True]

    def __len__(self) -> int:
        return len(self.final)

    def moves(self, state: int) -> tuple[Move, ...]:
        if self.final[state]:
            return ()
        return ((self._raw[state], self._raw[state], state + 1),)

    def counts(self, state: int, to: int) -> bool:
        return False

    def cost(self, state: int, low: int = 0, high: int | None = None) -> int | None:
        return len(self._raw) - state

    def fewest_characters(self) -> list[int]:
        return [0] * len(self)

    def completion(
        self, state: int, low: int = 0, high: int | None = None, most: int = maxsize
    ) -> bytes:
        end = min(state + most, len(self._raw))
        while end < len(self._raw) and self._raw[end] & 0xC0 == 0x80:  # within a character
            end += 1
        return self._raw[state:end]
