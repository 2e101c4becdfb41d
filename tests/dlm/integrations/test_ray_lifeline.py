"""Worker processes end with their owner, whatever ends the owner."""

import subprocess
import sys

import pytest

pytest.importorskip("ray")

from waiting import PATIENCE, wait_until

from dlm.integrations import ray as cluster

OWNER = """
import time
from dlm.integrations.ray import listening
with listening() as owner:
    print(*owner, flush=True)
    time.sleep(1e6)
"""
WORKER = """
import sys, time
from dlm.integrations.ray import end_with
end_with((sys.argv[1], int(sys.argv[2])))
print("works", flush=True)
time.sleep(1e6)
"""


def process(code, *args):
    return subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.PIPE, text=True)


def test_workers_end_when_their_owner_is_killed_and_late_ones_at_once():
    with process(OWNER) as owner:
        address = owner.stdout.readline().split()
        with process(WORKER, *address) as worker, process(WORKER, *address) as other:
            assert [each.stdout.readline() for each in (worker, other)] == ["works\n"] * 2
            other.kill()  # the end of a worker ends no other process
            with pytest.raises(subprocess.TimeoutExpired):
                worker.wait(1)
            owner.kill()
            assert worker.wait(PATIENCE) == 1
    with process(WORKER, *address) as late:
        assert late.wait(PATIENCE) == 1


def test_a_worker_that_cannot_reach_its_owner_goes_on(monkeypatch):
    ends, tries = [], []

    def nowhere(*address):
        tries.append(address)
        raise TimeoutError

    monkeypatch.setattr(cluster.os, "_exit", ends.append)
    monkeypatch.setattr(cluster.socket, "create_connection", nowhere)
    cluster.end_with(("192.0.2.1", 9))
    wait_until(lambda: tries)
    cluster._watch(("192.0.2.1", 9))
    assert not ends
