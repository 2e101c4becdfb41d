"""Engines of commands that tests run in their own process."""

from collections.abc import Iterator
from functools import partialmethod

import pytest

from dlm import Engine
from dlm.grammar import Workers


@pytest.fixture(scope="module", autouse=True)
def shared_workers(workers: Workers) -> Iterator[None]:
    """Let the engines of a module compile in the same processes, which take a second to start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "__init__", partialmethod(Engine.__init__, workers=workers))
        yield
