"""What a pass over slots looks like to attention: stretches of tokens, and the pages they are in.

Which pages a slot holds, and why, is not known here.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from dlm.kernels.paging import Paging, Segment


class Pass(NamedTuple):
    """What is encoded, and where in the cache everything of a pass is."""

    encode: list[tuple[int, list[int]]]  # slots and tokens, packed in this order
    positions: Int64[Tensor, " N"]  # of all tokens; those of canvases come last
    paging: Mapping[str, Paging]  # by kind of layer


class Stretch(NamedTuple):
    """Adjacent tokens of a slot."""

    slot: int
    position: int  # of the first
    tokens: int
    causal: bool  # to be cached; else a canvas


@dataclass(slots=True)
class Held:
    """The pages of one slot in one pool."""

    first: int = 0  # page of the slot that `pages` begins with; those before it are given back
    pages: array = field(default_factory=lambda: array("i"))  # which numpy reads in place
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
    """The pass over `stretches`, packed in their order. Nothing is waited for."""
    positions = [np.arange(each.position, each.position + each.tokens) for each in stretches]
    paging = {
        kind: _paging(stretches, [slots[each.slot] for each in stretches], page, device)
        for kind, slots in held.items()
    }
    return Pass(encode, _sent(_joined(positions), device), paging)


def _paging(
    stretches: Sequence[Stretch], held: Sequence[Held], page: int, device: torch.device
) -> Paging:
    segments, rows, places, row = [], [], [], 0
    width = max((len(one.pages) for one in held), default=0)
    table = np.zeros((len(held), width), np.int32)
    for i, (each, one) in enumerate(zip(stretches, held, strict=True)):
        segments.append(Segment(row, each.tokens, each.position, each.causal, one.first))
        table[i, : len(one.pages)] = pages = np.frombuffer(one.pages, np.int32)
        if each.causal:
            at = np.arange(each.position, each.position + each.tokens)
            rows.append(np.arange(row, row + each.tokens))
            places.append(pages[at // page - one.first].astype(np.int64) * page + at % page)
        row += each.tokens
    numbers = np.array(segments, np.int32).reshape(-1, len(Segment._fields)).T
    sent = (_sent(each, device) for each in (numbers, table, _joined(rows), _joined(places)))
    return Paging(tuple(segments), *sent)


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _sent(numbers: np.ndarray, device: torch.device) -> Tensor:
    """On the device, for which nobody waits."""
    tensor = torch.from_numpy(np.ascontiguousarray(numbers))
    if device.type == "cuda" and torch.cuda.is_available():  # not while a pass is traced
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
