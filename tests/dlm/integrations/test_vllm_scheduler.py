"""Wrappers of vLLM's scheduler, and of what becomes of its reasons."""

import asyncio
from types import SimpleNamespace

import pytest
import vllm_package
from vllm_configs import DATA, FORGED, OTHERS, config
from vllm_package import Status
from vllm_params import Params

from dlm.integrations.vllm import hooks, own, scheduler
from dlm.integrations.vllm.payload import KEY, TOOLS, Reading, ToolsText


@pytest.fixture
def vllm(monkeypatch):
    classes = vllm_package.installed(monkeypatch)
    hooks.install()
    own.register([own.GEMMA])
    return classes


def request_with(value):
    params = Params(extra_args={KEY: value})
    return SimpleNamespace(sampling_params=params, status=Status.RUNNING, stop_reason=None)


@pytest.mark.parametrize("other", [*OTHERS, None, SimpleNamespace()])
@pytest.mark.parametrize("value", [*FORGED, DATA])
def test_the_scheduler_of_another_model_reads_no_request(vllm, other, value):
    manager, request = vllm.StructuredOutputManager(other), request_with(value)
    assert manager.accept_tokens(request, [0, 0]) == "theirs"
    assert manager.called == ((request, [0, 0]), {})
    assert manager.accept_tokens(a="newer", version=2) == "theirs"
    theirs = vllm.Scheduler(other)
    assert theirs._update_request_with_output(request, [3, 7]) == ([3, 7], False)
    assert theirs._update_request_with_output(a="newer", version=2) is None
    assert theirs.called == ((), {"a": "newer", "version": 2})


@pytest.mark.parametrize("value", FORGED)
def test_no_forged_value_ends_the_own_scheduler(vllm, value):
    manager, updating = vllm.StructuredOutputManager(config()), vllm.Scheduler(config())
    for params in (Params(extra_args={KEY: value}), None, Params(extra_args=value)):
        request = SimpleNamespace(sampling_params=params)
        assert manager.accept_tokens(request, [0, 0]) == "theirs"
        assert updating._update_request_with_output(request, [0, 3]) == ([0, 3], False)


def test_an_error_in_the_scheduler_is_logged_and_vllm_decides(vllm, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(scheduler, "has_failed", broken)
    monkeypatch.setattr(scheduler, "restore_stop", broken)
    assert vllm.StructuredOutputManager(config()).accept_tokens(SimpleNamespace(), [0]) == "theirs"
    assert "RuntimeError: a bug" in caplog.text
    caplog.clear()
    updating = vllm.Scheduler(config())
    assert updating._update_request_with_output(SimpleNamespace(), [7]) == ([7], False)
    assert "RuntimeError: a bug" in caplog.text


def test_a_failed_request_of_the_own_model_is_refused(vllm):
    manager, request = vllm.StructuredOutputManager(config()), request_with(DATA)
    assert manager.accept_tokens(request, [0, 0]) is False
    assert manager.accept_tokens(request, [7, 0]) == "theirs"


@pytest.mark.parametrize(
    ("canvas", "tokens", "status", "reason"),
    [
        ([7, 8, 106, 0, 0], [7, 8, 106], Status.FINISHED_STOPPED, 106),
        ([7, 8, 4, 0, 0], [7, 8], Status.FINISHED_LENGTH_CAPPED, None),
        ([7, 8, 9, 9, 3], [7, 8, 9, 9], Status.FINISHED_LENGTH_CAPPED, None),
        ([3, 0, 0], [], Status.FINISHED_LENGTH_CAPPED, None),
        ([7, 8, 9], [7, 8, 9], Status.RUNNING, None),
    ],
)
def test_an_answer_cut_short_ends_before_its_stop_with_the_reason_length(
    vllm, canvas, tokens, status, reason
):
    request = request_with(DATA)
    found, stopped = vllm.Scheduler(config())._update_request_with_output(request, canvas)
    assert found == tokens
    assert stopped == (status != Status.RUNNING)
    assert (request.status, request.stop_reason) == (status, reason)


async def results(*reasons):
    for index, reason in enumerate(reasons):
        yield SimpleNamespace(outputs=[SimpleNamespace(index=index, finish_reason=reason)])


def chat(vllm, request, *reasons):
    made = vllm.OpenAIServingChat().chat_completion_full_generator(request, results(*reasons))
    return [choice.finish_reason for choice in asyncio.run(made).choices]


def test_calls_of_an_answer_cut_short_end_with_length(vllm):
    tools = ToolsText("{}")
    request = SimpleNamespace(vllm_xargs={TOOLS: tools})
    assert chat(vllm, request, "length", "stop") == ["tool_calls", "tool_calls"]
    tools.reading = Reading(None, None, None, None)
    assert chat(vllm, request, "length", "stop") == ["length", "tool_calls"]
    other = vllm.OpenAIServingChat()
    assert asyncio.run(other.chat_completion_full_generator(a="newer")) is None
    assert other.called == ((), {"a": "newer"})
