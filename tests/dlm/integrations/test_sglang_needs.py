"""The plugin's check of SGLang's source, against made-up source files."""

import logging
import sys

import pytest

from dlm.integrations import plugins, sglang
from dlm.integrations.sglang.needs import missing, polls

_SCHEDULER = "srt/managers/scheduler.py"
_MIXIN = "srt/dllm/mixin/scheduler.py"
POLL = """
class Scheduler:
    def get_new_batch(self):
        for req in self.grammar_manager.get_ready_grammar_requests():
            self.add(req)
"""


def write(package, file, source):
    path = package / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)


def test_sglang_polls_for_diffusion_models_if_there_is_a_second_caller(tmp_path):
    assert not polls(tmp_path)
    write(tmp_path, _SCHEDULER, POLL)
    write(tmp_path, _MIXIN, "class SchedulerDllmMixin: ...\n")
    assert not polls(tmp_path)
    write(tmp_path, _MIXIN, POLL)
    assert polls(tmp_path)


def test_an_sglang_of_other_names_is_left_alone_with_a_line_in_the_log(
    tmp_path, monkeypatch, caplog
):
    """Nothing of SGLang is imported then."""
    write(tmp_path, "sglang/__init__.py", "")
    write(tmp_path, f"sglang/{_SCHEDULER}", POLL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sglang", raising=False)
    assert "GrammarManager" not in missing(tmp_path / "sglang")
    with caplog.at_level(logging.WARNING, "sglang.dlm"):
        sglang.register()
    (record,) = caplog.records
    assert "left as it is" in record.getMessage()
    assert "srt/constrained/grammar_manager.py cannot be read" in record.getMessage()
    assert not [name for name in sys.modules if name.startswith("sglang.srt")]


def test_without_sglang_nothing_is_logged(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "sglang", None)
    monkeypatch.setattr(plugins, "find_spec", lambda name: None)
    sglang.register()
    assert not caplog.records


def test_an_error_of_the_plugin_is_logged_and_not_raised(monkeypatch, caplog):
    def broken(name):
        raise RuntimeError("a bug, by the test")

    monkeypatch.setattr(plugins, "find_spec", broken)
    sglang.register()
    assert "a bug, by the test" in caplog.text


@pytest.mark.parametrize("name", ["srt/dllm/algorithm/base.py", "srt/runtime_context.py"])
def test_files_that_are_not_there_are_named(tmp_path, name):
    assert f"{name} cannot be read" in missing(tmp_path)
