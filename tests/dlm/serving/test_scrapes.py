"""Metrics of several servers in one text."""

from time import perf_counter

import pytest
from prometheus_client.parser import text_string_to_metric_families
from results import result_of

from dlm import Finished
from dlm.request import Stats
from dlm.serving.event_stream import EventStream
from dlm.serving.metrics import Metrics, merge_metrics

RESULT = result_of([], "", stats=Stats(queued=0.25, prefill=0.1))


def samples(text):
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_time_before_arrival_counts_as_waiting_and_not_as_decoding(built_in):
    metrics = Metrics("tiny", 16, lambda: built_in.occupancy)
    stream = EventStream(0, False, print, arrived=perf_counter() - 30)
    metrics.on_event(stream, Finished(request=0, result=RESULT), stream.opened + 0.75)
    found = samples(metrics.text().decode())
    spent = {
        name: found[f"dlm:{name}_seconds_sum", ("model_name", "tiny")]
        for name in ("request_queue_time", "request_prefill_time", "request_decode_time")
    }
    assert spent == pytest.approx(
        {"request_queue_time": 30.25, "request_prefill_time": 0.1, "request_decode_time": 0.4},
        abs=0.01,
    )


def test_merged_samples_are_labelled_by_their_replica(built_in):
    texts = {}
    for replica, ends in (("a", 1), ("b", 3)):
        metrics = Metrics("tiny", 16, lambda: built_in.occupancy)
        for _ in range(ends):
            metrics.on_abandoned(EventStream(0, False, print), 0.0)
        texts[replica] = metrics.text().decode()
    right = {
        (name, *sorted([*labels, ("replica", replica)])): value
        for replica, text in texts.items()
        for (name, *labels), value in samples(text).items()
    }
    found = samples(merge_metrics(texts).decode())
    assert found == right
    labels = [("finished_reason", "abort"), ("model_name", "tiny"), ("replica", "b")]
    assert found["dlm:request_success_total", *labels] == 3
