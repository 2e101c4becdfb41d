"""Start of Ray Serve's proxies, which may take longer than the minute that Ray Serve waits."""

import pytest

from dlm import DlmError

pytest.importorskip("ray")

from ray.serve.schema import ProxyStatus

from dlm.integrations.ray import application


class Slow:
    """Ray Serve whose proxies are healthy when their status was read `reads` times."""

    def __init__(self, reads):
        self.reads, self.starts = reads, 0
        self.proxies = {"a": ProxyStatus.HEALTHY, "b": ProxyStatus.STARTING}

    def start(self, **_):
        self.starts += 1
        if self.reads and self.starts == 1:
            raise TimeoutError("HTTP proxies not available after 60s.")

    def status(self):
        self.reads -= 1
        if not self.reads:
            self.proxies["b"] = ProxyStatus.HEALTHY
        return self


@pytest.fixture
def no_sleep(monkeypatch):
    monkeypatch.setattr(application.time, "sleep", lambda _: None)


def test_proxies_that_start_late_are_waited_for(no_sleep, monkeypatch):
    slow = Slow(reads=3)
    monkeypatch.setattr(application, "serve", slow)
    application._start()
    assert (slow.reads, slow.starts) == (0, 2)


def test_proxies_that_never_start_are_an_error(no_sleep, monkeypatch):
    monkeypatch.setattr(application, "_PATIENCE", 0.01)
    monkeypatch.setattr(application, "serve", Slow(reads=-1))
    with pytest.raises(DlmError, match=r"proxies could not be started: HTTP proxies not available"):
        application._start()


def test_proxies_that_start_at_once_are_started_once(monkeypatch):
    monkeypatch.setattr(application, "serve", slow := Slow(reads=0))
    application._start()
    assert slow.starts == 1
