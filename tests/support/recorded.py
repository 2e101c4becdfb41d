"""Stands in for CUDA graphs: records operators with the memory that they read and write, and does
them again over the same memory. As on a GPU, nothing on the host is looked at again. Kernels that
are launched outside of an operator are not seen.

What a pass made is poisoned before any is replayed, whosever it is: graphs share their memory.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dlm.models.graphs import Captured

# Launches of our operators that have several: attention merges its parts; experts are two products,
# a sum and its rounding.
_LAUNCHES = {"dlm::paged_attention": 2, "dlm::moe_choices": 2}
# Operators that move no data: views, and memory without numbers.
_FREE = {"aten::_unsafe_view", "aten::empty", "aten::empty_like", "aten::new_empty"}


def launches(calls: list[Any]) -> list[str]:
    """Return the names of operators that are no views, each as often as it launches."""
    names = list[str]()
    for function, *_ in calls:
        schema = function._schema
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        if not view and schema.name not in _FREE:
            names += [schema.name] * _LAUNCHES.get(schema.name, 1)
    return names


class Operators(TorchDispatchMode):
    """Recorder of the operators that run, with their arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


class Recorder:
    """A `Capture`; `graphs` counts them."""

    def __init__(self) -> None:
        self._made: list[Tensor] = []  # by all that was recorded, in memory of its own
        self.graphs = 0

    def __call__(self, run: Callable[[], Tensor]) -> Captured:
        self.graphs += 1
        with Operators() as operators:
            states = run()
        calls = operators.calls
        if any("_local_scalar_dense" in str(func) for func, *_ in calls):
            raise RuntimeError("operation not permitted when stream is capturing")
        for _, args, kwargs, result in calls:
            given = {_memory(x) for x in _tensors((args, kwargs))}
            self._made += [x for x in _tensors(result) if _memory(x) not in given]

        def replay() -> None:
            self._poison()
            for func, args, kwargs, result in calls:
                again = func(*args, **kwargs)
                for old, new in zip(_tensors(result), _tensors(again), strict=True):
                    if _memory(old) != _memory(new):
                        old.copy_(new)

        return Captured(replay, states)

    def _poison(self) -> None:
        for tensor in self._made:
            tensor.fill_(torch.nan if tensor.is_floating_point() else 77)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
