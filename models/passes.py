"""Layout of a pass for attention: stretches of tokens, and their pages.

This module does not know why a slot holds its pages.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from dlm.kernels.paging import CANVAS, CAUSAL, IMAGE, Paging, Segment, sent
from dlm.models.image_tokens import runs


class Pass(NamedTuple):
    """Encoded tokens of a pass, and the places of all its tokens in the cache."""

    encode: list[tuple[int, list[int]]]  # slots and tokens, packed in this order
    positions: Int64[Tensor, " N"]  # of all tokens; those of canvases are last
    paging: Mapping[str, Paging]  # by kind of layer


class Stretch(NamedTuple):
    """Adjacent tokens of a slot in a pass."""

    slot: int
    position: int  # of the first token
    tokens: int
    kind: int  # of segment: CANVAS, CAUSAL or IMAGE


def encoded(
    slot: int, position: int, tokens: Sequence[int], images_see_all: bool
) -> Iterator[Stretch]:
    """Yield the stretches of `tokens` that are encoded from `position` on. With `images_see_all`
    each image is a stretch of its own, in which all tokens see one another."""
    if not images_see_all:
        yield Stretch(slot, position, len(tokens), CAUSAL)
        return
    for image, length in runs(tokens):
        yield Stretch(slot, position, length, CAUSAL if image is None else IMAGE)
        position += length


@dataclass(slots=True)
class Held:
    """Pages of one slot in one pool."""

    first: int = 0  # index of the first of `pages` in the slot; earlier ones are released
    pages: array = field(default_factory=lambda: array("i"))  # numpy reads it in place
    reserved: int = 0

    @property
    def end(self) -> int:
        return self.first + len(self.pages)


def lay_out(
    encode: list[tuple[int, list[int]]],
    stretches: Sequence[Stretch],
    held: Mapping[str, Sequence[Held]],  # by kind and slot
    page: int,
    device: torch.device,
) -> Pass:
    """Return the pass over `stretches`, packed in their order, without waiting for the device."""
    positions = [np.arange(each.position, each.position + each.tokens) for each in stretches]
    kinds = [
        _paging(stretches, [slots[each.slot] for each in stretches], page)
        for slots in held.values()
    ]
    arrays = _joined(positions), *(array for _, *rest in kinds for array in rest)
    on_device = iter(sent(map(torch.from_numpy, map(np.ascontiguousarray, arrays)), device))
    first = next(on_device)
    paging = {
        kind: Paging(segments, *(next(on_device) for _ in rest))
        for kind, (segments, *rest) in zip(held, kinds, strict=True)
    }
    return Pass(encode, first, paging)


def _paging(
    stretches: Sequence[Stretch], held: Sequence[Held], page: int
) -> tuple[tuple[Segment, ...], np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the fields of `Paging`, on the host."""
    segments, rows, places, row = [], [], [], 0
    width = max((len(one.pages) for one in held), default=0)
    table = np.zeros((len(held), width), np.int32)
    for i, (each, one) in enumerate(zip(stretches, held, strict=True)):
        segments.append(Segment(row, each.tokens, each.position, each.kind, one.first))
        table[i, : len(one.pages)] = pages = np.frombuffer(one.pages, np.int32)
        if each.kind != CANVAS:
            at = np.arange(each.position, each.position + each.tokens)
            rows.append(np.arange(row, row + each.tokens))
            places.append(pages[at // page - one.first].astype(np.int64) * page + at % page)
        row += each.tokens
    numbers = np.array(segments, np.int32).reshape(-1, len(Segment._fields)).T
    return tuple(segments), numbers, table, _joined(rows), _joined(places)


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *parts])
