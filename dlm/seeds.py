"""Random generators from seeds of any size."""

from hashlib import blake2b
from secrets import randbits

import torch

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
