"""Checkpoint directories that tests change, and the loader's errors about them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from dlm.models import CheckpointError, checkpoint


def edit_tensors(directory: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    """Write the tensors of a directory again, after `edit` has changed them."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def refusal(directory: Path, **options: Any) -> str:
    """Return the message of the error with which `directory` is not loaded."""
    with pytest.raises(CheckpointError) as error:
        checkpoint.load(directory, **options)
    return str(error.value)
