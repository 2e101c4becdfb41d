"""Settings of SGLang's plugin, from environment variables."""

import pytest

from dlm.errors import DlmError
from dlm.integrations.sglang import settings
from dlm.integrations.sglang.settings import PluginSettings
from dlm.policy import Policy


def test_defaults_and_values(monkeypatch):
    for name in (settings.ORDER, settings.STEP_WORK):
        monkeypatch.delenv(name, raising=False)
    assert PluginSettings.read() == PluginSettings() == PluginSettings("joint", Policy().step_work)
    monkeypatch.setenv(settings.ORDER, " prefix ")
    monkeypatch.setenv(settings.STEP_WORK, "70")
    assert PluginSettings.read() == PluginSettings("prefix", 70)


def test_values_that_mean_nothing_are_refused(monkeypatch):
    monkeypatch.setenv(settings.ORDER, "any")
    with pytest.raises(DlmError, match="DLM_SGLANG_ORDER must be joint or prefix, got 'any'"):
        PluginSettings.read()
    monkeypatch.delenv(settings.ORDER)
    for text in ("0", "-1", "1.5", "x", "²"):
        monkeypatch.setenv(settings.STEP_WORK, text)
        with pytest.raises(DlmError, match="DLM_SGLANG_STEP_WORK must be an integer of at least 1"):
            PluginSettings.read()
