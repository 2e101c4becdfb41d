"""Front end of vLLM: constrained requests are compiled without blocking the event loop.

A request is compiled in another process before the event loop passes it on, and the loop serves
other requests meanwhile.
"""

import asyncio
import copy
import functools
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from dlm.errors import RequestError
from dlm.grammar import Task
from dlm.integrations.vllm.admission import FrontEndAdmission, vocabulary_of
from dlm.integrations.vllm.payload import Admitted
from dlm.policy import Policy

T = TypeVar("T")


class FrontEnd:
    """Admission for one InputProcessor, built in the background while the model loads."""

    def __init__(self, vllm_config: Any, tokenizer: Any):
        self._vllm_config, self._model_config = vllm_config, vllm_config.model_config
        self._threads = ThreadPoolExecutor(2, "dlm-admission")
        # A call changes vLLM's own tokenizer, so other threads need a copy.
        own = copy.deepcopy(tokenizer)
        self._admission: Future[FrontEndAdmission] = self._threads.submit(self._build, own)

    def _build(self, tokenizer: Any) -> FrontEndAdmission:
        parallel = self._vllm_config.parallel_config
        if getattr(parallel, "enable_batch_sharded_sampling", False):
            raise RequestError("constraints are not served with batch-sharded sampling")
        if tokenizer is None:
            raise RequestError("constraints are not served without a tokenizer")
        policy = Policy.server(allow_client_grammars=True, flags=False)
        return FrontEndAdmission(vocabulary_of(self._model_config, tokenizer), tokenizer, policy)

    def admit(self, params: Any, prompt: Sequence[int] | None) -> Admitted | None:
        """Compile and check the constraint, and wait for that; None if the text is free."""
        if prompt is None:
            raise RequestError("a constraint beside prompt_embeds is not supported")
        admission = self._admission.result()
        spec = admission.spec(params)
        if spec is None:
            return None
        compiled = admission.compile(spec).result()
        admitted = admission.admit(compiled, params, prompt, self._model_config.max_model_len)
        admission.expect_calls(spec, params, admitted)
        return admitted

    async def admit_later(self, params: Any, prompt: Sequence[int]) -> Admitted | None:
        """Admit as `admit` does, without blocking the event loop."""
        run = functools.partial(asyncio.get_running_loop().run_in_executor, self._threads)
        admission = await _shielded(self._admission)
        spec = await run(admission.spec, params)
        if spec is None:
            return None
        compiled = await _waited(admission.compile(spec))
        most = self._model_config.max_model_len
        admitted = await run(admission.admit, compiled, params, prompt, most)
        admission.expect_calls(spec, params, admitted)
        return admitted


async def _waited(task: Task) -> Any:
    """Return the result of `task`. If this waiter is cancelled, the task goes on for others."""
    try:
        return await _shielded(task)
    except asyncio.CancelledError:
        task.leave()
        raise


def _shielded(future: Future[T]) -> asyncio.Future[T]:
    """Return an awaitable of `future` that does not cancel it. Its error is read by a callback,
    since asyncio would log it if no waiter remained."""
    inner = asyncio.wrap_future(future)
    inner.add_done_callback(lambda done: done.cancelled() or done.exception())
    return asyncio.shield(inner)
