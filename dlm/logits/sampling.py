"""Draws at a temperature, cuts of distributions (top-k, top-p, min-p), and seeded generators."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from secrets import randbits

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dlm.kernels.vocab_cut import Cuts
from dlm.request import Request

COLDEST = 1e-4  # lowest temperature: a lower one counts as this, so that its inverse is finite


def sharpen(
    x: Float[Tensor, "n K"], temperatures: Float32[Tensor, " n"], uniform: Float32[Tensor, " n"]
) -> Int64[Tensor, " n"]:
    """Return one of `K` for each row, drawn by `uniform` from the softmax of x / temperature. At
    least one x of a row is finite. A temperature of 0 counts as `COLDEST`."""
    heat = 1 / temperatures.clamp(min=COLDEST)
    mass = ((x - x.amax(-1, keepdim=True)) * heat[:, None]).softmax(-1).cumsum(-1)
    return (mass <= uniform[:, None] * mass[:, -1:]).sum(-1).clamp(max=x.shape[-1] - 1)


_MOST = 2**31 - 1  # tokens: more than any vocabulary has


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Cut of a request's distributions: only their likeliest tokens are left. It is applied to the
    tokens that a constraint allows, so at least one of these is left."""

    temperature: float  # of the probabilities that `top_p` and `min_p` apply to
    top_k: int = 0  # tokens; 0: any number
    top_p: float = 1.0
    min_p: float = 0.0

    @classmethod
    def of(cls, request: Request, temperature: float) -> "Cut | None":
        """Return the cut of a request; None if it cuts nothing."""
        top_k = max(0, min(int(request.top_k), _MOST))
        cut = cls(
            temperature=temperature,
            top_k=top_k,
            top_p=float(request.top_p),
            min_p=float(request.min_p),
        )
        return None if (cut.top_k, cut.top_p, cut.min_p) == (0, 1, 0) else cut


def columns(cuts: Sequence[Cut]) -> tuple[Float32[Tensor, " n"], Cuts]:
    """Return inverse temperatures and cuts of n rows, as `cut_masks` takes them, on the host."""
    heat = 1 / torch.tensor([cut.temperature for cut in cuts])
    top_k = torch.tensor([cut.top_k for cut in cuts], dtype=torch.int32)
    top_p, min_p = (torch.tensor([getattr(c, name) for c in cuts]) for name in ("top_p", "min_p"))
    return heat, Cuts(top_k, top_p, min_p)


_PLAIN = 2**32  # smaller seeds are passed to torch as they are: on a CPU it reads no more bits


def generator(seed: int, device: torch.device, part: int = 0) -> torch.Generator:
    """Return a generator on `device` for an integer `seed` of any size, and for each `part` of
    it."""
    return torch.Generator(device).manual_seed(_reduced_seed(seed, part))


def fixed(seed: int | None) -> int:
    """Return the seed of one request; None becomes a random one."""
    return randbits(63) if seed is None else int(seed)


def _reduced_seed(seed: int, part: int) -> int:
    if 0 <= seed < _PLAIN and not part:
        return seed
    whole = seed.to_bytes(seed.bit_length() // 8 + 1, "little", signed=True)
    digest = blake2b(whole, digest_size=8, salt=part.to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little") >> 1
