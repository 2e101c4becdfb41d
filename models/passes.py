"""What a pass over slots looks like to attention: stretches of tokens, and the pages they are in.

Which pages a slot holds, and why, is not known here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
    pages: list[int] = field(default_factory=list)
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
    positions = [each.position + i for each in stretches for i in range(each.tokens)]
    paging = {
        kind: _paging(stretches, [slots[each.slot] for each in stretches], page, device)
        for kind, slots in held.items()
    }
    return Pass(encode, _tensor(positions, torch.int64, device), paging)


def _paging(
    stretches: Sequence[Stretch], held: Sequence[Held], page: int, device: torch.device
) -> Paging:
    segments, rows, places, row = [], [], [], 0
    for each, one in zip(stretches, held, strict=True):
        segments.append(Segment(row, each.tokens, each.position, each.causal, one.first))
        if each.causal:
            rows += range(row, row + each.tokens)
            for at in range(each.position, each.position + each.tokens):
                places.append(one.pages[at // page - one.first] * page + at % page)
        row += each.tokens
    width = max((len(one.pages) for one in held), default=0)
    table = [one.pages + [0] * (width - len(one.pages)) for one in held]
    numbers = [[segment[i] for segment in segments] for i in range(len(Segment._fields))]
    return Paging(
        tuple(segments),
        _tensor(numbers, torch.int32, device),
        _tensor(table, torch.int32, device).view(len(held), width),
        _tensor(rows, torch.int64, device),
        _tensor(places, torch.int64, device),
    )


def _tensor(numbers: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    pinned = device.type == "cuda" and torch.cuda.is_available()  # not while a pass is traced
    return torch.tensor(numbers, dtype=dtype, pin_memory=pinned, device="cpu").to(
        device, non_blocking=True
    )
