"""Tests of the measurement of the host's part of a pass."""

import json

import bench


def test_the_host_is_timed_without_files(monkeypatch, run_command):
    monkeypatch.setattr(bench, "HOST_SLOTS", (1, 2))
    found = json.loads(run_command(bench, "--host", "--json").out)
    assert [*found] == ["host, 1 slots", "host, 2 slots"]
    assert all(each["p50"] > 0 for each in found.values())


def test_all_other_measurements_need_files(refusal_of):
    assert "--schemas and --tokenizer, or --host" in refusal_of(bench)
