"""Tests of the measurement of the host's part of a pass."""

import json

import load
import pytest


@pytest.mark.exhaustive
def test_the_host_is_timed_without_files(run_command):
    times = json.loads(run_command(load, "host", "--slots", "1,2").out)
    assert [*times] == ["host, 1 slots", "host, 2 slots"]
    assert all(milliseconds > 0 for milliseconds in times.values())


def test_throughput_needs_files(refusal_of):
    assert "required: --schemas, --tokenizer" in refusal_of(load, "throughput")
