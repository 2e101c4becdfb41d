"""Settings of SGLang's plugin, from environment variables."""

import pytest

from dlm.errors import DlmError
from dlm.integrations.sglang import settings
from dlm.policy import Policy


def test_defaults_and_values(monkeypatch):
    for name in (settings.ORDER, settings.STEP_WORK):
        monkeypatch.delenv(name, raising=False)
    assert settings.order() == "joint"
    assert settings.step_work() == Policy().step_work
    monkeypatch.setenv(settings.ORDER, " prefix ")
    monkeypatch.setenv(settings.STEP_WORK, "70")
    assert settings.order() == "prefix"
    assert settings.step_work() == 70


def test_values_that_mean_nothing_are_refused(monkeypatch):
    monkeypatch.setenv(settings.ORDER, "any")
    with pytest.raises(DlmError, match="DLM_SGLANG_ORDER must be joint or prefix, got 'any'"):
        settings.order()
    for text in ("0", "-1", "1.5", "x", "²"):
        monkeypatch.setenv(settings.STEP_WORK, text)
        with pytest.raises(DlmError, match="DLM_SGLANG_STEP_WORK must be an integer of at least 1"):
            settings.step_work()
