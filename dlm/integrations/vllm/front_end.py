"""Front end of vLLM: constrained requests are compiled without blocking the event loop.

A request is compiled in another process before the event loop passes it on, and the loop serves
other requests meanwhile.
"""

import asyncio
import copy
import functools
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from dlm.errors import DlmError, RequestError
from dlm.grammar import GrammarError, Task
from dlm.integrations.vllm.admission import FrontEndAdmission, vocabulary_of
from dlm.integrations.vllm.own import GEMMA, OwnModel
from dlm.integrations.vllm.payload import Admitted
from dlm.integrations.vllm.requested import Requested
from dlm.policy import Policy

T = TypeVar("T")


class FrontEnd:
    """Admission for one InputProcessor, built in the background while the model loads."""

    def __init__(self, vllm_config: Any, tokenizer: Any, model: OwnModel = GEMMA):
        self.model = model
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
        policy = Policy.server(allow_client_grammars=True, tools_at_once=False, flags=False)
        vocabulary = vocabulary_of(self._model_config, tokenizer, self.model)
        mask = self.model.mask(self._model_config)
        return FrontEndAdmission(vocabulary, tokenizer, policy, self.model, mask)

    def admit(
        self, params: Any, prompt: Sequence[int] | None, served: bool = True
    ) -> Admitted | None:
        """Compile and check the constraint, and wait for that; None if the text is free.

        `served`: workers have the plugin's sampler. Raises `RequestError` and `GrammarError`.
        """
        steps, error, result = self._steps(params, prompt, served), None, None
        try:
            while True:
                awaited = steps.send(result) if error is None else steps.throw(error)
                error, result = None, None
                try:
                    result = awaited() if callable(awaited) else awaited.result()
                except DlmError as raised:
                    error = raised
        except StopIteration as end:
            return end.value

    async def admit_later(
        self, params: Any, prompt: Sequence[int], served: bool = True
    ) -> Admitted | None:
        """Admit as `admit` does, without blocking the event loop."""
        run = functools.partial(asyncio.get_running_loop().run_in_executor, self._threads)
        steps, error, result = self._steps(params, prompt, served), None, None
        try:
            while True:
                awaited = steps.send(result) if error is None else steps.throw(error)
                error, result = None, None
                try:
                    if isinstance(awaited, Task):
                        result = await _waited(awaited)
                    elif isinstance(awaited, Future):
                        result = await _shielded(awaited)
                    else:
                        result = await run(awaited)
                except DlmError as raised:
                    error = raised
        except StopIteration as end:
            return end.value

    def _steps(
        self, params: Any, prompt: Sequence[int] | None, served: bool
    ) -> Generator[Future[Any] | Callable[[], Any], Any, Admitted | None]:
        """Yield what is to be waited for or called, is sent its result, and return the admission;
        None if the text is free."""
        requested = Requested(params)
        try:
            if not served:
                raise RequestError(
                    "constraints are not served here: the check of the worker's sampler at its "
                    "start failed, as its log says"
                )
            if prompt is None:
                raise RequestError("a constraint beside prompt_embeds is not supported")
            admission: FrontEndAdmission = yield self._admission
        except DlmError as error:
            requested.give_up(error)
            return None
        most, thinking = self._model_config.max_model_len, requested.thinking
        read = functools.partial(requested.spec, admission.policy, admission.form)
        while (spec := (yield read)) is not None:
            try:
                compiled = yield admission.compile(spec)
                admit = functools.partial(
                    admission.admit, compiled, spec, params, prompt, most, thinking
                )
                admitted: Admitted = yield admit
                admission.expect_answer(spec, params, admitted)
                return admitted
            except (RequestError, GrammarError) as error:
                yield functools.partial(requested.relax, error)
        return None


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
