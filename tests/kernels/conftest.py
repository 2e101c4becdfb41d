"""Set-up of tests of kernels: an interpreter that computes what a GPU does, and both paths."""

import os

import pytest

if os.environ.get("TRITON_INTERPRET") == "1":
    import interpreter

    interpreter.install()


@pytest.fixture(params=[False, True], ids=["cpu", "kernel"])
def by_kernel(request: pytest.FixtureRequest) -> bool:
    """Whether the kernel computes a result, or torch does."""
    return request.param
