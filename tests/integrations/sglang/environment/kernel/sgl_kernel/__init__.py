"""Stand-in for SGLang's package of kernels, which has none for a CPU without AMX.

Every name of it can be imported. The one function that SGLang's scheduler calls on a CPU is plain
torch, and all others raise when they are called.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__version__ = "0.4.10"  # the one that SGLang 0.5.23 asks for
__path__: list[str] = []


def assign_req_to_token_pool_cpu(
    req_pool_indices: Any, req_to_token: Any, start: Any, end: Any, out_cache_loc: Any, width: int
) -> None:
    """Write the places of each request's new tokens, one after another in `out_cache_loc`."""
    taken = 0
    rows = zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True)
    for row, begin, stop in rows:
        count = stop - begin
        places = out_cache_loc[taken : taken + count]
        req_to_token[row, begin:stop] = places.to(req_to_token.dtype)
        taken += count


class Absent:
    """A kernel, or a namespace of kernels, that does not exist here."""

    def __init__(self, name: str):
        self.__name__ = name

    def __getattr__(self, name: str) -> "Absent":
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError(f"{self.__name__} is no kernel for this CPU")


class AbsentModule(ModuleType):
    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")


class Absences(MetaPathFinder, Loader):
    """Finder of this package's modules, none of which has a file."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        inside = fullname.startswith(f"{__name__}.")
        return ModuleSpec(fullname, self, is_package=True) if inside else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def __getattr__(name: str) -> Absent:
    if name.startswith("__"):
        raise AttributeError(name)
    return Absent(f"{__name__}.{name}")


sys.meta_path.append(Absences())
