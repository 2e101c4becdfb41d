"""Ways of decoding by their names."""

from dlm.config import Writes
from dlm.loop.decoding import Decoding
from dlm.loop.diffusion import Diffusion
from dlm.loop.left_to_right import Autoregressive


def decoding_of(name: Writes, temperature: float = 0.0) -> Decoding:
    """Return the decoding of this name. `temperature` is that of decoding left to right, by which a
    request's is multiplied."""
    if name == "canvas":
        return Diffusion()
    return Autoregressive(temperature=temperature, drafts=name == "drafted")
