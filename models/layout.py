"""Layout of a family's model directories: what reading, writing, planning and quantising have
to know of its networks.

The cache, passes and graphs know a network's `ModelShape` alone.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from dlm.models.backends import Dispatch
from dlm.models.formats import MODELOPT, Format
from dlm.models.places import Place
from dlm.models.plan import Weights
from dlm.models.shape import ModelShape
from dlm.models.text_stack import TextStack

C = TypeVar("C", bound=ModelShape)
N = TypeVar("N", bound=TextStack)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation(Generic[C, N]):
    """Matrices of a family's float checkpoint that become NVFP4."""

    blocks: Callable[[C], Mapping[str, int]]
    """Lengths of the rows of these matrices, by a name for people: multiples of 16."""
    matrices: Callable[[str, Tensor], Iterable[tuple[str, Tensor, Tensor]] | None]
    """Returns the path of each matrix in a tensor, the matrix, and its tensor scale, by the tensor
    and its name. None for a tensor that stays as it is."""
    input_scales: Callable[[N, int], dict[str, Tensor]]
    """Scales of activations, by the names of their tensors of matrices, which a model is measured
    for while it writes a number of canvases."""
    names: Callable[[C], list[str]]
    """Names of tensors by which a file shows that these matrices are in NVFP4, by the config."""
    ignored: tuple[str, ...]
    """Names of the modules that stay as they are, as ModelOpt declares them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout(Generic[C, N]):
    """Layout of the model directories of a family. A `Family` names it."""

    model_types: tuple[str, ...]  # of its `config.json`, the main one first
    config: Callable[[Mapping[str, Any]], C]  # of a parsed `config.json`
    network: Callable[[C], N]
    parameter_name: Callable[[str], str | None]
    """Returns a network's own name of a tensor in a file; None if a network does not need it."""
    adapt: Callable[[N, Collection[str], Format | None, Dispatch], None]
    """Adapts a network of floats without data to a file with tensors of these names, and to run as
    requested."""
    places: Callable[[N, Format | None], dict[str, Place]]  # of all tensors of a file, by name
    quantisation: Quantisation[C, N]

    def adapted(
        self, config: C, names: Collection[str], form: Format | None, dispatch: Dispatch
    ) -> N:
        """Return a network without data for a file with tensors `names`."""
        with torch.device("meta"):
            network = self.network(config)
            self.adapt(network, names, form, dispatch)
        return network

    def unfilled(self, config: C, weights: Weights, dispatch: Dispatch | None = None) -> N:
        """Return a network without data, whose weights are of this type."""
        names = self.quantisation.names(config) if weights == "nvfp4" else []
        return self.adapted(config, names, MODELOPT, dispatch or Dispatch())
