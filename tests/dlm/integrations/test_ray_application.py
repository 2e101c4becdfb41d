"""Ray Serve gives its proxies a minute to start: on a busy machine they take longer."""

import pytest

from dlm import DlmError

pytest.importorskip("ray")

from ray.serve.schema import ProxyStatus

from dlm.integrations.ray import application


class Slow:
    """Ray Serve, whose proxies need some looks at them."""

    def __init__(self, looks):
        self.looks, self.starts = looks, 0
        self.proxies = {"a": ProxyStatus.HEALTHY, "b": ProxyStatus.STARTING}

    def start(self, **_):
        self.starts += 1
        if self.looks and self.starts == 1:
            raise TimeoutError("HTTP proxies not available after 60s.")

    def status(self):
        self.looks -= 1
        if not self.looks:
            self.proxies["b"] = ProxyStatus.HEALTHY
        return self


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(application.time, "sleep", lambda _: None)


def test_proxies_that_start_late_are_waited_for(hasty, monkeypatch):
    slow = Slow(looks=3)
    monkeypatch.setattr(application, "serve", slow)
    application._start()
    assert (slow.looks, slow.starts) == (0, 2)


def test_proxies_that_never_start_are_an_error(hasty, monkeypatch):
    monkeypatch.setattr(application, "_PATIENCE", 0.01)
    monkeypatch.setattr(application, "serve", Slow(looks=-1))
    with pytest.raises(DlmError, match=r"proxies could not be started: HTTP proxies not available"):
        application._start()


def test_proxies_that_start_at_once_are_started_once(monkeypatch):
    monkeypatch.setattr(application, "serve", slow := Slow(looks=0))
    application._start()
    assert slow.starts == 1
