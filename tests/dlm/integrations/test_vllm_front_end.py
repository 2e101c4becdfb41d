"""Calls of the front end by vLLM: blocking, or within an event loop."""

import asyncio
import gc
from types import SimpleNamespace

import pytest
from values import V
from vllm_params import Outputs, Params, tools_text

from dlm.errors import RequestError
from dlm.grammar import (
    BudgetError,
    Compiler,
    InvalidGrammarError,
    LimitError,
    Regex,
    Task,
    Vocabulary,
)
from dlm.integrations.vllm.admission import FrontEndAdmission
from dlm.integrations.vllm.front_end import FrontEnd
from dlm.integrations.vllm.payload import KEY, Admitted
from dlm.integrations.vllm.requested import has_constraint


def config(**parallel):
    model = SimpleNamespace(
        try_get_generation_config=lambda: {"eos_token_id": [1, 106, 50]},
        get_vocab_size=lambda: V,
        max_model_len=512,
    )
    return SimpleNamespace(model_config=model, parallel_config=SimpleNamespace(**parallel))


@pytest.fixture(scope="module")
def front_end(chat):
    return FrontEnd(config(), chat.tokenizer)


def test_both_calls_admit_the_same(front_end):
    params = Params(Outputs(regex="[a-f]{3}"))
    assert has_constraint(params)
    now = front_end.admit(params, [2, 5])
    later = asyncio.run(front_end.admit_later(params, [2, 5]))
    assert now is not None
    assert now == later
    assert has_constraint(Params(extra_args={KEY: now}))


def test_tools_that_may_not_be_called_are_no_constraint(front_end):
    params = Params(extra_args=tools_text(tool_choice="none"))
    assert front_end.admit(params, [2]) is None
    assert asyncio.run(front_end.admit_later(params, [2])) is None


def test_errors_are_raised_to_each_caller(front_end):
    bad = Params(Outputs(json={"type": "string", "pattern": "(?<=a)b(?=c)\\1"}))
    small = Params(Outputs(regex="[a-f]{9}"), max_tokens=2)
    for params, error in ((bad, (InvalidGrammarError, RequestError)), (small, BudgetError)):
        with pytest.raises(error):
            front_end.admit(params, [2])
        with pytest.raises(error):
            asyncio.run(front_end.admit_later(params, [2]))
    with pytest.raises(RequestError, match="prompt_embeds"):
        front_end.admit(small, None)


def test_a_refusal_names_no_flags_that_vllm_does_not_have(front_end):
    many = Params(Outputs(choice=[str(i) for i in range(2000)]))
    with pytest.raises(RequestError, match=r"up to 1000 are served here$"):
        front_end.admit(many, [2])


def test_other_tasks_run_while_a_grammar_is_compiled(front_end):
    schema = {"type": "object", "properties": {f"k{i}": {"type": "number"} for i in range(60)}}

    async def both():
        ticks = 0
        waiting = asyncio.ensure_future(
            front_end.admit_later(Params(Outputs(json=schema), max_tokens=None), [2])
        )
        while not waiting.done():
            await asyncio.sleep(0.001)
            ticks += 1
        return ticks, await waiting

    ticks, admitted = asyncio.run(both())
    assert ticks > 3
    assert admitted is not None


@pytest.fixture
def compiling(monkeypatch):
    """Tasks of one grammar, one for each caller; a test ends its compilation."""
    tasks = []

    def compile_later(self, spec):
        task = tasks[0] if tasks else Task()
        assert not tasks or task.join()
        tasks.append(task)
        return task

    monkeypatch.setattr(FrontEndAdmission, "compile", compile_later)
    return tasks


async def waiters(front_end, compiling, count):
    params = Params(Outputs(regex="[a-f]{3}"))
    found = [asyncio.ensure_future(front_end.admit_later(params, [2])) for _ in range(count)]
    while len(compiling) < count:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)  # until they wait for their grammars
    return found


async def give_up(waiter):
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter


def test_a_caller_that_gives_up_affects_no_other(front_end, chat, compiling):
    vocabulary = Vocabulary.from_tokenizer(chat.tokenizer, V, (1, 106, 50), 0)
    compiled = Compiler(vocabulary).compile(Regex("[a-f]{3}"))

    async def two():
        first, second = await waiters(front_end, compiling, 2)
        await give_up(first)
        compiling[0].set_result(compiled)
        return await second

    assert isinstance(asyncio.run(two()), Admitted)


def test_a_grammar_that_no_caller_waits_for_is_not_compiled(front_end, compiling):
    async def one():
        for waiter in await waiters(front_end, compiling, 1):
            await give_up(waiter)

    asyncio.run(one())
    assert compiling[0].cancelled()


def test_an_error_that_no_caller_waits_for_is_not_logged(front_end, compiling):
    wrong = []

    async def one():
        asyncio.get_running_loop().set_exception_handler(lambda _, what: wrong.append(what))
        found = await waiters(front_end, compiling, 1)
        compiling[0].set_running_or_notify_cancel()
        await give_up(found.pop())
        compiling.pop().set_exception(LimitError("it takes over 10 s"))
        await asyncio.sleep(0.01)  # until the loop has handled it

    asyncio.run(one())
    gc.collect()
    assert not wrong


def test_sharded_sampling_and_no_tokenizer_are_refused(chat):
    for one in (
        FrontEnd(config(enable_batch_sharded_sampling=True), chat.tokenizer),
        FrontEnd(config(), None),
    ):
        with pytest.raises(RequestError, match="not served"):
            one.admit(Params(Outputs(regex="a")), [2])
