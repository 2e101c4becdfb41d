"""What the sampler decides, from entropies and draws: pure functions of tensors, no state.

The reference is transformers' `generation_diffusion_gemma` (EntropyBoundSampler,
LinearTemperatureScheduleLogitsProcessor, StableAndConfidentStoppingCriteria).

Cuts of a request's distributions (top-k, top-p, min-p), for whoever reads logits.

Random generators from seeds of any size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from secrets import randbits

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from dlm.kernels.vocab_cut import Cuts
from dlm.request import Request

COLDEST = 1e-4  # a temperature under this counts as this one: its inverse is to stay a number


def temperature(remaining: int, steps: int, t_min: float, t_max: float) -> float:
    """Linear schedule: `t_max` with all `steps` remaining, toward `t_min` with none.

    Past the last step (`remaining < 1`) it stays where the last step left it.
    """
    return t_min + (t_max - t_min) * max(1, remaining) / steps


def accept(entropies: Float[Tensor, "*B L"], bound: float) -> Bool[Tensor, "*B L"]:
    """The surest positions, while all surer ones together cost at most `bound` nats.

    A position's own entropy does not count, so at least one is accepted: this bounds the mutual
    information that sampling them independently ignores (arXiv:2505.24857).
    """
    cost, order = entropies.sort(-1)
    within = cost.cumsum(-1) - cost <= bound
    return torch.zeros_like(within).scatter(-1, order, within)


def renoise(noise: Int64[Tensor, "*B L"], kept: Int64[Tensor, "*B L"]) -> Int64[Tensor, "*B L"]:
    """The next canvas: what is drawn and kept, and noise where `kept` is -1."""
    return torch.where(kept < 0, noise, kept)


def sharpen(
    x: Float[Tensor, "n K"], temperatures: Float32[Tensor, " n"], uniform: Float32[Tensor, " n"]
) -> Int64[Tensor, " n"]:
    """One of `K` each, drawn by `uniform` from the softmax of x / temperature.

    x is finite for one of them at least. Temperatures of 0 count as very small ones.
    """
    heat = 1 / temperatures.clamp(min=COLDEST)
    mass = ((x - x.amax(-1, keepdim=True)) * heat[:, None]).softmax(-1).cumsum(-1)
    return (mass <= uniform[:, None] * mass[:, -1:]).sum(-1).clamp(max=x.shape[-1] - 1)


def settled(stable: bool, mean_entropy: float, threshold: float) -> bool:
    """A canvas is done when its guess repeats and its mean entropy (nats) is under `threshold`."""
    return stable and mean_entropy < threshold


_MOST = 2**31 - 1  # tokens: more than any vocabulary has


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What is left of each distribution of a request: its likeliest tokens.

    It is made among the tokens that a constraint allows, so that one of these is always left.
    """

    temperature: float  # of the probabilities that `top_p` and `min_p` speak of
    top_k: int = 0  # tokens; 0: any number
    top_p: float = 1.0
    min_p: float = 0.0

    @classmethod
    def of(cls, request: Request, temperature: float) -> "Cut | None":
        """Return the cut of a request; None where it leaves everything."""
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


_PLAIN = 2**32  # seeds below it are torch's own: on a CPU it reads no more bits of one


def generator(seed: int, device: torch.device, part: int = 0) -> torch.Generator:
    """Return a generator on `device`: one for each integer `seed`, and for each `part` of it."""
    return torch.Generator(device).manual_seed(_reduced(seed, part))


def fixed(seed: int | None) -> int:
    """Return the seed of one request: where it has none, one that nobody can foresee."""
    return randbits(63) if seed is None else int(seed)


def _reduced(seed: int, part: int) -> int:
    if 0 <= seed < _PLAIN and not part:
        return seed
    whole = seed.to_bytes(seed.bit_length() // 8 + 1, "little", signed=True)
    digest = blake2b(whole, digest_size=8, salt=part.to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little") >> 1
