"""Threads of torch while an engine steps."""

import pytest
import torch
from processes import printed

from dlm import DlmError, Engine
from dlm.threads import SMALL, default_numbers, threads_for, using

NUMBERS = """
import torch
import dlm

def numbers(**chosen):
    engine = dlm.Engine.load(device="cpu", **chosen)
    steps, run = [], engine._decoder.run
    engine._decoder.run = lambda plan: steps.append(torch.get_num_threads()) or run(plan)
    before = torch.get_num_threads()
    engine.generate(dlm.Request(prompt="hi", max_tokens=8))
    engine.close()
    print(before, *{*steps}, torch.get_num_threads())
"""


@pytest.fixture
def numbers_of(monkeypatch):
    """Run code that prints `numbers` of engines, each: before, in and after the engine's steps."""

    def numbers_of(code, **environment):
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            monkeypatch.delenv(name, raising=False)
        lines = printed(NUMBERS + code, **environment).splitlines()
        return [tuple(map(int, line.split())) for line in lines]

    return numbers_of


def test_a_small_model_steps_on_one_thread_unless_another_number_was_chosen(numbers_of):
    code = "numbers()\nnumbers(threads=3)\n"
    code += "torch.set_num_threads(7)\nnumbers()\nnumbers(threads=2)\n"
    by_itself, three, seven, two = numbers_of(code)
    own = by_itself[0]  # torch's number, which the process keeps
    assert by_itself == (own, 1, own)
    assert three == (own, 3, own)
    assert seven == (7, 7, 7)
    assert two == (7, 2, 7)


def test_a_small_model_steps_on_the_threads_that_the_environment_gives(numbers_of):
    [(before, during, after)] = numbers_of("numbers()\n", OMP_NUM_THREADS="2")
    assert before == during == after  # torch's, which may be fewer than two


def test_a_large_model_runs_on_torch_s_own_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: max(default_numbers()))
    assert threads_for(SMALL) == 1
    assert threads_for(SMALL + 1) is None


def test_threads_are_restored_after_an_error():
    before = torch.get_num_threads()
    within = []

    def fail():
        with using(before + 2):
            within.append(torch.get_num_threads())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert within == [before + 2]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("threads", [0, -1, True, 1.5, "2"])
def test_other_numbers_are_refused(threads):
    with pytest.raises(DlmError, match="threads must be at least 1, got"):
        Engine.load(device="cpu", threads=threads)


@pytest.mark.parametrize("name", ["drafts", "Canvas", "autoregressive", " "])
def test_an_unknown_name_of_a_decoding_is_refused(name):
    with pytest.raises(
        DlmError, match=r"decoding must be one of canvas, drafted, left-to-right, .*, got"
    ):
        Engine.load(device="cpu", decoding=name)
