"""Ways to decode, for tests of what holds whichever is taken."""

from collections.abc import Callable
from typing import Any

import pytest

from dlm import Autoregressive, Diffusion, Engine

DECODINGS = {
    "canvases": Diffusion(),
    "left to right": Autoregressive(),
    "drafted": Autoregressive(temperature=1.0, drafts=True),
}


@pytest.fixture(scope="module", params=DECODINGS.values(), ids=DECODINGS.keys())
def engine_of_each(
    request: pytest.FixtureRequest, engine_of: Callable[..., Engine]
) -> Callable[..., Engine]:
    """For a module that says `engine_of = engine_of_each`: its tests run with each of them."""

    def build(*args: Any, **more: Any) -> Engine:
        return engine_of(*args, **{"decoding": request.param} | more)

    return build
