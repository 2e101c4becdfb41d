"""Hooks into SGLang, with its own classes: what they leave alone, and what they end."""

import logging
from http import HTTPStatus
from types import SimpleNamespace

import pytest
from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend, BaseGrammarObject
from sglang.srt.dllm.algorithm import algo_name_to_cls
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH
from sglang.srt.plugins.hook_registry import HookRegistry

from dlm.errors import DlmError
from dlm.integrations.sglang import hooks
from dlm.integrations.sglang.algorithms import Constrained
from dlm.integrations.sglang.backend import BoundGrammar, DiffusionGrammarBackend
from dlm.integrations.sglang.settings import PluginSettings

UNSET = {
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_new_tokens": 0,
    "min_p": 0.0,
    "sampling_seed": None,
    "logit_bias": None,
}
FLAGS = (
    "return_logprob",
    "return_flat_raw_top_logprobs",
    "custom_logit_processor",
    "return_sampling_mask",
)
_POLL = "sglang.srt.managers.scheduler.Scheduler.get_new_batch_dllm"


def running(monkeypatch, algorithm, backend="xgrammar"):
    """Have SGLang run with a diffusion algorithm, or None."""
    execution = SimpleNamespace(
        dllm=SimpleNamespace(dllm_algorithm=algorithm),
        kernel=SimpleNamespace(grammar_backend=backend),
    )
    monkeypatch.setattr(hooks, "get_exec", lambda: execution)


def original(*args, **options):
    return args, options


@pytest.mark.parametrize(
    ("algorithm", "backend"),
    [(None, "xgrammar"), ("Another", "xgrammar"), ("LowConfidence", "none")],
)
def test_other_models_have_the_grammar_backend_of_sglang(monkeypatch, algorithm, backend):
    running(monkeypatch, algorithm, backend)
    made = hooks.created(original, "args", "tokenizer", 9, {1}, think_end_ids=[2], newer=3)
    options = {"eos_token_ids": {1}, "think_end_ids": [2], "newer": 3}
    assert made == (("args", "tokenizer", 9), options)


def test_grammars_are_left_to_sglang_if_the_check_fails(monkeypatch, caplog):
    def failing(*_):
        raise DlmError("a bug, by the test")

    running(monkeypatch, "LowConfidence")
    monkeypatch.setattr(hooks, "_backend", failing)
    with caplog.at_level(logging.ERROR, "sglang.dlm"):
        made = hooks.created(original, "args", "tokenizer", 9)
    assert made[0] == ("args", "tokenizer", 9)
    assert "grammars are left to SGLang" in caplog.text
    assert "a bug, by the test" in caplog.text


@pytest.mark.parametrize("name", ["LowConfidence", "Gemma4Renoise"])
def test_its_own_algorithm_is_in_sglang_s_table_if_the_check_fails(monkeypatch, name):
    own = algo_name_to_cls[name]
    monkeypatch.setitem(algo_name_to_cls, name, hooks.ALGORITHMS[name].of(own, PluginSettings()))
    running(monkeypatch, name)
    monkeypatch.setattr(hooks, "_backend", None)
    for _ in range(2):
        hooks.created(original, "args", "tokenizer", 9)
        assert algo_name_to_cls[name] is own


@pytest.mark.parametrize("name", hooks.ALGORITHMS)
def test_a_constraint_is_no_reason_to_refuse_a_request_and_others_are_sglang_s(name):
    params = SimpleNamespace(
        json_schema="{}", regex=None, ebnf=None, structural_tag=None, ignore_eos=False
    )
    for field, default in UNSET.items():
        setattr(params, field, default)
    logprob = SimpleNamespace(top_logprobs_num=0, token_ids_logprob=None)
    req = SimpleNamespace(sampling_params=params, logprob=logprob, **dict.fromkeys(FLAGS))
    cls = hooks.ALGORITHMS[name].of(algo_name_to_cls[name], PluginSettings())
    assert cls.validate_request(req) is None
    assert params.json_schema == "{}"
    params.min_p = 0.5
    refusal = cls.validate_request(req)
    assert refusal is None if name != "Gemma4Renoise" else "min_p;" in refusal
    params.stop_strs = ["x"]
    assert "stop_strs beside a constraint" in cls.validate_request(req)


@pytest.mark.parametrize("polls", [False, True])
def test_the_queue_is_polled_unless_sglang_does_it(monkeypatch, polls):
    names = {}
    monkeypatch.setattr(
        HookRegistry, "register", lambda name, hook, kind: names.update({name: kind})
    )
    table = dict(algo_name_to_cls)
    try:
        hooks.install(polls)
        hooks.install(polls)
        classes = [algo_name_to_cls[name] for name in hooks.ALGORITHMS]
    finally:
        algo_name_to_cls.update(table)
    assert (_POLL in names) == (not polls)
    assert len(names) == 4 + (not polls)
    for cls in classes:
        assert issubclass(cls, Constrained)
        assert [base for base in cls.__mro__ if base is Constrained] == [Constrained]


@pytest.mark.parametrize(
    ("apart", "prompt", "room"),
    [(False, 10, 86), (False, 40, 56), (True, 10, 64), (True, 40, 32), (True, 90, 0)],
)
def test_the_context_has_room_for_whole_blocks(apart, prompt, room):
    """A context of 100 tokens and blocks of 32, which begin at its beginning or after a prompt."""
    config = SimpleNamespace(block_size=32, requires_separate_context_encoding=apart)
    engine = SimpleNamespace(dllm_config=config, model_config=SimpleNamespace(context_len=100))
    assert hooks._room(engine, prompt) == room


def scheduler(backend):
    manager = SimpleNamespace(
        grammar_backend=backend,
        has_waiting_grammars=lambda: True,
        get_ready_grammar_requests=lambda: ["ready"],
    )
    queue = []
    return SimpleNamespace(grammar_manager=manager, _add_request_to_queue=queue.append), queue


def test_ready_requests_are_queued_for_the_own_backend_alone():
    own = DiffusionGrammarBackend.__new__(DiffusionGrammarBackend)
    for backend, queued in ((own, ["ready"]), (BaseGrammarBackend(), []), (None, [])):
        engine, queue = scheduler(backend)
        hooks.poll(engine, "running batch")
        assert queue == queued


class Grammar(BoundGrammar):
    """A constraint of a request that has ended in some way."""

    stops = (1,)
    squeezed = False

    def __init__(self, error=None, squeezed=False):
        self.error, self.squeezed = error, squeezed

    def check(self):
        return self.error


def request(grammar, output=(7, 8, 1, 1)):
    finished = []
    req = SimpleNamespace(grammar=grammar, output_ids=list(output), finished_reason=None)
    req.finished_len, req.to_finish = None, None
    req.finished = lambda: req.finished_reason is not None

    def update(req, *_):
        finished.append(req.to_finish)
        req.finished_reason, req.finished_len = req.to_finish or "stop", 3

    return req, update, finished


@pytest.mark.parametrize("grammar", [None, BaseGrammarObject()])
def test_requests_without_a_constraint_of_the_plugin_end_as_they_do(grammar):
    req, update, finished = request(grammar)
    hooks.finishing(update, req)
    assert finished == [None]
    assert req.finished_reason == "stop"


def test_a_failed_request_is_aborted_with_its_reason():
    req, update, _ = request(Grammar(error=DlmError("a bug")))
    hooks.finishing(update, req)
    assert isinstance(req.finished_reason, FINISH_ABORT)
    assert req.finished_reason.message == "a bug"
    assert req.finished_reason.status_code == HTTPStatus.INTERNAL_SERVER_ERROR


def test_a_squeezed_answer_ends_by_its_length_without_the_stop():
    req, update, _ = request(Grammar(squeezed=True))
    hooks.finishing(update, req)
    assert isinstance(req.finished_reason, FINISH_LENGTH)
    assert req.finished_len == 2
