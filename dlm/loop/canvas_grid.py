"""Grid of canvases: which tokens can be encoded, and where a canvas begins.

If blocks are cached whole, they count from position 0: the first canvas of an answer then holds the
end of the prompt, whose tokens see the whole finished block when it is encoded.
"""

from dataclasses import dataclass

from dlm.errors import DlmError
from dlm.models.pages import CHUNK
from dlm.models.shape import Caching


@dataclass(frozen=True, slots=True)
class CanvasGrid:
    """Grid of canvases of `length` positions."""

    length: int
    caches: Caching = "causally"

    def __post_init__(self) -> None:
        """Raise `DlmError` for blocks that no pass can encode."""
        if self.caches == "whole" and self.length > CHUNK:
            raise DlmError(
                f"a block that is cached whole must have at most {CHUNK} tokens, got {self.length}"
            )

    @property
    def chunk(self) -> int:
        """Maximum number of tokens that a pass encodes in a slot."""
        return CHUNK if self.caches == "causally" else CHUNK // self.length * self.length

    def encodable(self, tokens: int) -> int:
        """Return how many of the first `tokens` tokens can be encoded."""
        return tokens if self.caches == "causally" else tokens // self.length * self.length

    def begin(self, prompt: int, at: int) -> int:
        """Return the position at which the canvas of the answer's token `at` begins, after `prompt`
        tokens; it may lie in the prompt."""
        prompted = prompt - self.encodable(prompt)  # tokens of the prompt in the first canvas
        return prompt - prompted + (prompted + at) // self.length * self.length

    def first_room(self, prompt: int) -> int:
        """Return how many tokens the first canvas after `prompt` tokens takes."""
        return self.length - (prompt - self.encodable(prompt))

    def capacity(self, positions: int, most: int) -> int:
        """Return how many of the last `positions` of `most` positions whole canvases can fill."""
        if self.caches == "whole":
            return max(0, positions - most % self.length)
        return positions // self.length * self.length
