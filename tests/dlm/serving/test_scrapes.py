"""Metrics of several servers in one text."""

from prometheus_client.parser import text_string_to_metric_families

from dlm.serving.metrics import Metrics
from dlm.serving.scrapes import merged
from dlm.serving.stream import EventStream


def samples(text):
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_every_sample_stays_and_is_labelled_by_its_replica(built_in):
    texts = {}
    for replica, ends in (("a", 1), ("b", 3)):
        metrics = Metrics("tiny", 16, lambda: built_in.occupancy)
        for _ in range(ends):
            metrics.left(EventStream(0, 1, False, print), 0.0)
        texts[replica] = metrics.text().decode()
    right = {
        (name, *sorted([*labels, ("replica", replica)])): value
        for replica, text in texts.items()
        for (name, *labels), value in samples(text).items()
    }
    found = samples(merged(texts).decode())
    assert found == right
    labels = [("finished_reason", "abort"), ("model_name", "tiny"), ("replica", "b")]
    assert found["dlm:request_success_total", *labels] == 3
