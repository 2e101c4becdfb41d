"""Ways to decode, for tests of what holds whichever is taken."""

import pytest

from dlm import Autoregressive, Diffusion
from dlm.decoding import Decoding

DECODINGS = {
    "canvases": Diffusion(),
    "left to right": Autoregressive(),
}


@pytest.fixture(scope="session", params=DECODINGS.values(), ids=DECODINGS.keys())
def each_decoding(request: pytest.FixtureRequest) -> Decoding:
    """In a module that says `decoding = each_decoding`, `engine_of` makes engines of each."""
    return request.param
