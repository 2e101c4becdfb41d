"""dlm inside other libraries: transformers' `generate`, causal models of transformers, Ray, vLLM,
SGLang.

Each module is imported when it is first accessed, since its library takes seconds to import.
"""

from importlib import import_module
from types import ModuleType

_MODULES = ("causal_lm", "ray", "sglang", "transformers", "vllm")


def __getattr__(name: str) -> ModuleType:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
