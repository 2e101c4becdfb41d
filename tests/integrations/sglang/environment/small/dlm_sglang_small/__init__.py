"""Changes to SGLang for tests on a CPU, which make it small enough, as a plugin of it.

- `DLM_TEST_MODELS`: names of the files of models that SGLang imports; all of them take minutes.
- `DLM_TEST_MASK`: the id of the mask token, which SGLang fixes by architecture at vocabulary sizes
  of 150,000 tokens.
- `DLM_TEST_FAILS`: a budget; the grammars of requests with that budget raise in their second step,
  as a bug would.
- `DLM_TEST_NOISE`: DiffusionGemma runs on a CPU, which SGLang refuses (`noise`).
"""

import os
import pkgutil
from collections.abc import Iterator
from typing import Any


def register() -> None:
    """Put the changes into this process's SGLang, as far as their variables are set."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if names := os.environ.get("DLM_TEST_MODELS"):
        _import_only(names.split(","))
    if os.environ.get("DLM_TEST_MASK"):
        target = "sglang.srt.dllm.config.DllmConfig.from_server_args"
        HookRegistry.register(target, _with_mask, HookType.AFTER)
    if os.environ.get("DLM_TEST_NOISE"):
        from dlm_sglang_small.noise import run_on_cpu

        run_on_cpu()
    if budget := os.environ.get("DLM_TEST_FAILS"):
        _fail_at(int(budget))


def _with_mask(config: Any, *args: Any, **options: Any) -> Any:
    if config is not None:
        config.mask_id = int(os.environ["DLM_TEST_MASK"])
    return config


def _import_only(names: list[str]) -> None:
    every = pkgutil.iter_modules

    def some(path: Any = None, prefix: str = "") -> Iterator[pkgutil.ModuleInfo]:
        for module in every(path, prefix):
            other = prefix == "sglang.srt.models." and module.name.rpartition(".")[2] not in names
            if not other:
                yield module

    pkgutil.iter_modules = some  # type: ignore[assignment]


def _fail_at(budget: int) -> None:
    from dlm.integrations.sglang.grammar import RequestGrammar

    bind, guide = RequestGrammar.bind, RequestGrammar.guide
    steps: dict[int, int] = {}  # of the grammars that fail

    def marked(self: Any, prompt: int, output: Any, tokens: int, *more: Any) -> None:
        bind(self, prompt, output, tokens, *more)
        steps.pop(id(self), None)  # of another one, which is gone
        if tokens == budget:
            steps[id(self)] = 0

    def failing(self: Any, *args: Any) -> Any:
        if id(self) in steps:
            steps[id(self)] += 1
            if steps[id(self)] == 2:
                raise RuntimeError("a bug, by the test")
        return guide(self, *args)

    RequestGrammar.bind, RequestGrammar.guide = marked, failing  # type: ignore[method-assign]
