"""The metrics of several servers as those of one, in Prometheus' form."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector


def merged(texts: Mapping[str, str]) -> bytes:
    """One text of several: their samples, labelled by the `replica` whose text it is, the key."""
    families = dict[str, Metric]()
    for replica, text in texts.items():
        for family in text_string_to_metric_families(text):
            into = families.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            for sample in family.samples:
                labels = sample.labels | {"replica": replica}
                into.samples.append(sample._replace(labels=labels))
    registry = CollectorRegistry()
    registry.register(_Collected(families.values()))
    return generate_latest(registry)


class _Collected(Collector):
    def __init__(self, families: Iterable[Metric]):
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
