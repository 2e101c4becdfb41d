"""Threads of torch while an engine steps."""

import pytest
import torch
from processes import printed

from dlm import DlmError, Engine
from dlm.threads import SMALL, default_numbers, threads_for, using

STEPS = """
import sys, torch
import dlm
{before}
engine = dlm.Engine.load(device="cpu"{arguments})
steps, step = [], engine._decoder.step
engine._decoder.step = lambda running: steps.append(torch.get_num_threads()) or step(running)
default = torch.get_num_threads()
engine.generate(dlm.Request(prompt="hi", max_tokens=8))
print(default, *{{*steps}}, torch.get_num_threads())
"""


@pytest.mark.parametrize(
    ("before", "arguments", "env", "during"),
    [
        ("", "", {}, 1),
        ("", ", threads=3", {}, 3),
        ("torch.set_num_threads(7)", "", {}, 7),
        ("torch.set_num_threads(7)", ", threads=2", {}, 2),
        ("", "", {"OMP_NUM_THREADS": "2"}, None),  # torch's, which may be fewer
    ],
)
def test_a_small_model_steps_on_one_thread_unless_another_number_was_chosen(
    before, arguments, env, during, monkeypatch
):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    outside, inside, after = printed(STEPS.format(before=before, arguments=arguments)).split()
    assert inside == (outside if during is None else str(during))
    assert outside == after  # the process keeps its own
    if "set_num" in before:
        assert outside == "7"


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
