"""Settings of the vLLM plugin, read from environment variables."""

import re

import pytest

from dlm.errors import DlmError
from dlm.integrations.vllm.settings import ORDER, STEP_WORK, order, step_work
from dlm.policy import Policy


@pytest.mark.parametrize(
    ("text", "units"), [("1", 1), ("500", 500), (" 4000 ", 4000), ("", Policy().step_work)]
)
def test_the_work_of_a_step_is_a_number_of_units(monkeypatch, text, units):
    monkeypatch.setenv(STEP_WORK, text)
    assert step_work() == units


def test_without_the_variable_the_work_is_that_of_the_engine(monkeypatch):
    monkeypatch.delenv(STEP_WORK, raising=False)
    assert step_work() == Policy().step_work


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "1e3", "ten", "٣", "1_0"])
def test_other_texts_are_refused_by_name(monkeypatch, text):
    monkeypatch.setenv(STEP_WORK, text)
    with pytest.raises(DlmError, match=re.escape(f"{STEP_WORK} must be an integer of at least 1")):
        step_work()


def test_the_order_of_unmasking_is_joint_or_prefix(monkeypatch):
    monkeypatch.delenv(ORDER, raising=False)
    assert order() == "joint"
    monkeypatch.setenv(ORDER, " prefix ")
    assert order() == "prefix"
    monkeypatch.setenv(ORDER, "any")
    with pytest.raises(DlmError, match="DLM_VLLM_ORDER must be joint or prefix, got 'any'"):
        order()
