"""Token ids of images in a prompt, and the embeddings that they stand for.

An image is a run of soft tokens, whose embeddings a vision tower computes. Each of them has an id
of its own, above those of any vocabulary. So a prompt stays a list of integers, and prompts with
the same beginning have the same images there: a cache of keys and values needs to know nothing
else.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from weakref import WeakValueDictionary

import torch
from jaxtyping import Float
from torch import Tensor

FIRST = 1 << 40  # the lowest id
MOST = 1 << 12  # soft tokens of an image


class EncodedImage:
    """Soft tokens of an image. Their ids have a meaning as long as this object lives."""

    def __init__(self, number: int, embeddings: Float[Tensor, "n hidden"]):
        self.number, self.embeddings = number, embeddings

    @property
    def tokens(self) -> range:
        """Ids of the soft tokens."""
        first = FIRST + self.number * MOST
        return range(first, first + len(self.embeddings))


class EncodedImages:
    """Collection of the images that are in use. Any number of threads may add images; ids are
    never reused."""

    def __init__(self) -> None:
        self._numbers = count()  # `next` is atomic
        self._images: WeakValueDictionary[int, EncodedImage] = WeakValueDictionary()

    def add(self, embeddings: Float[Tensor, "n hidden"]) -> EncodedImage:
        """Return an image with new ids. Raises `ValueError` if it has no soft token, or more than
        `MOST`."""
        if not 1 <= len(embeddings) <= MOST:
            raise ValueError(f"an image has 1 to {MOST} soft tokens, got {len(embeddings)}")
        image = EncodedImage(next(self._numbers), embeddings)
        self._images[image.number] = image
        return image

    def embeddings(self, tokens: Sequence[int]) -> Float[Tensor, "n hidden"]:
        """Return the embeddings of soft tokens. Raises `KeyError` for an image that is gone."""
        parts, at = list[Tensor](), 0
        for number, length in runs(tokens):
            if number is None:
                raise KeyError(f"token {tokens[at]} belongs to no image")
            first = tokens[at] % MOST
            parts.append(self._images[number].embeddings[first : first + length])
            at += length
        return torch.cat(parts)


def runs(tokens: Sequence[int]) -> Iterator[tuple[int | None, int]]:
    """Yield the number and length of each run of successive tokens of one image; the number is None
    for tokens of a text."""
    begin = 0
    for end in range(1, len(tokens) + 1):
        if end == len(tokens) or not _continues(tokens[end - 1], tokens[end]):
            first = tokens[begin]
            yield None if first < FIRST else (first - FIRST) // MOST, end - begin
            begin = end


def _continues(token: int, after: int) -> bool:
    """Whether the token `after` belongs to the same text, or goes on with the same image."""
    if after < FIRST:
        return token < FIRST
    return after == token + 1 and after % MOST > 0


def within_image(tokens: Sequence[int], end: int) -> bool:
    """Whether `tokens[:end]` end within an image that goes on in `tokens[end:]`."""
    inside = 0 < end < len(tokens) and tokens[end] >= FIRST
    return inside and _continues(tokens[end - 1], tokens[end])


def piece_length(tokens: Sequence[int], room: int) -> int:
    """Return how many of `tokens` are encoded in one piece: `room`, but never a part of an image.
    Such an image is left to the next piece. If it comes first, it is a piece by itself, which may
    have more than `room` tokens."""
    end = min(room, len(tokens))
    if not within_image(tokens, end):
        return end
    start = end - tokens[end] % MOST
    if start > 0:
        return start
    while within_image(tokens, end):
        end += 1
    return end
