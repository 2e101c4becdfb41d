"""Numbers in fp64, each with how far off a computation in fp32 may be that rounds where ours does.

With u = 2^-24: an operation is off by u of its result, a sum of K numbers by K u of the sum of
their sizes, an inverse root by 4 u. What its operands were off by is carried through each formula.
"""

from typing import NamedTuple

import torch
from torch import Tensor

U = 2.0**-24


class Bounded(NamedTuple):
    value: Tensor
    off: Tensor

    def __getitem__(self, at) -> "Bounded":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Bounded(self.value[at], self.off[at])

    @property
    def most(self) -> Tensor:
        return self.value.abs() + self.off

    def stored(self, dtype: torch.dtype) -> "Bounded":
        """Rounded to `dtype`: by half a unit in the last place, or of the smallest numbers."""
        info = torch.finfo(dtype)
        return Bounded(self.value, self.off + self.most * info.eps / 2 + info.tiny * info.eps)

    def plus(self, other: "Bounded") -> "Bounded":
        off = self.off + other.off
        value = self.value + other.value
        return Bounded(value, off + (value.abs() + off) * U)

    def times(self, other: "Bounded") -> "Bounded":
        value = self.value * other.value
        off = self.most * other.most - value.abs()
        return Bounded(value, off + (value.abs() + off) * U)

    def normed(self, eps: float) -> "Bounded":
        """Over the root of the mean square of the last axis."""
        square = self.value.square().mean(-1, keepdim=True)
        off = (self.most.square() - self.value.square()).mean(-1, keepdim=True)
        off += (self.value.shape[-1] + 2) * U * self.most.square().mean(-1, keepdim=True)
        inverse = (square + eps).rsqrt()
        largest = ((square - off).clamp(min=0) + eps).rsqrt() * (1 + 4 * U)
        return self.times(Bounded(inverse, largest - inverse))

    def holds(self, actual: Tensor) -> Tensor:
        """Whether each number is within its bound. A number beyond its type may be infinite."""
        x, largest = actual.cpu().double(), torch.finfo(actual.dtype).max
        beyond = x.isinf() & (x.sign() == self.value.sign()) & (self.most > largest)
        return ((x - self.value).abs() <= self.off) | beyond


def exact(x: Tensor) -> Bounded:
    return Bounded(x.double(), torch.zeros(x.shape, dtype=torch.float64))
