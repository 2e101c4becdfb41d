"""Metrics in Prometheus' form, under names like those of vLLM.

Times are measured by the engine and by the event loop, in seconds. `merge_metrics` joins the
metrics of several servers.
"""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from dlm.errors import RequestError
from dlm.events import Committed, Decided, Event, Failed, Finished
from dlm.occupancy import Occupancy
from dlm.request import Stats
from dlm.serving.event_stream import EventStream

_TIMES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)  # seconds
_RATES = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # tokens
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # of `Metrics.text`

_COUNTERS = {
    "prompt_tokens": "Tokens of prompts.",
    "generation_tokens": "Tokens of answers.",
    "questions": "Questions that decisions answered.",
    "prefix_cache_queries": "Tokens of prompts that were looked up in the cache.",
    "prefix_cache_hits": "Tokens of prompts that were found in the cache.",
    "diffusion_num_denoising_steps": "Passes over canvases.",
    "diffusion_num_canvas_positions": "Positions of all canvases that were begun.",
    "diffusion_num_committed_tokens": "Tokens that were committed from canvases.",
    "repairs": "Passes in which a grammar refused the model's own choice.",
    "pins": "Times that positions were fixed because a canvas was stuck.",
    "rollbacks": "Choices that were taken back.",
    "compile_seconds": "Seconds that requests waited for their grammars.",
    "grammar_seconds": "Seconds of work on grammars; shared passes count for each request.",
}
_TIMINGS = {
    "time_to_first_token_seconds": "From a request's arrival to its first text.",
    "inter_token_latency_seconds": "From one text of an answer to the next, per token.",
    "e2e_request_latency_seconds": "From a request's arrival to its end.",
    "request_queue_time_seconds": "From a request's arrival to its slot.",
    "request_prefill_time_seconds": "From a request's slot to the end of its first canvas pass.",
    "request_decode_time_seconds": "From the end of that pass to the request's end.",
}


class Metrics:
    """Metrics of one server: an `Observer` of events, with a registry of its own."""

    def __init__(self, model: str, canvas_length: int, occupancy: Callable[[], Occupancy]):
        """`model` labels all metrics. `occupancy` is called whenever they are read."""
        self._registry, self._label, self._L = CollectorRegistry(), model, canvas_length
        self._counters = {name: self._counter(name, help) for name, help in _COUNTERS.items()}
        self._timings = {
            name: self._histogram(name, help, _TIMES) for name, help in _TIMINGS.items()
        }
        self._per_pass = self._histogram("tokens_per_pass", "Tokens per pass, by request.", _RATES)
        self._ends = Counter(
            "dlm:request_success",
            "Requests, by how they ended.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        for reason in ("stop", "length", "decided", "abort", "error"):
            self._ends.labels(model, reason)
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "num_requests_running": ("Requests in a slot.", lambda: occupancy().running),
            "num_requests_waiting": ("Requests without a slot.", lambda: occupancy().waiting),
            "kv_cache_usage_perc": ("Share of the cache that is held.", lambda: occupancy().cache),
        }
        for name, (help, measure) in gauges.items():
            gauge = Gauge(f"dlm:{name}", help, ["model_name"], registry=self._registry)
            gauge.labels(model).set_function(measure)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def on_event(self, stream: EventStream, event: Event, now: float) -> None:
        """Count an event of a request at the time `now`, by `perf_counter`."""
        match event:
            case Committed(tokens=tokens):
                self._committed(stream, len(tokens), now)
            case Finished(result=result):
                self._per_pass.observe(result.stats.tokens_per_call)
                self._spent(stream, result.prompt_tokens, result.stats, now)
                self._ended(stream, result.finish_reason, now)
            case Decided(answers=answers, stats=stats):
                self._counters["questions"].inc(len(answers))
                self._spent(stream, sum(answer.prompt_tokens for answer in answers), stats, now)
                self._ended(stream, "decided", now)
            case Failed(error=error) if not isinstance(error, RequestError):  # else it is refused
                self._ended(stream, "error", now)

    def on_abandoned(self, stream: EventStream, now: float) -> None:
        """Count a request whose stream was closed before its end."""
        self._ended(stream, "abort", now)

    def _committed(self, stream: EventStream, tokens: int, now: float) -> None:
        if stream.last_text is None:
            self._timings["time_to_first_token_seconds"].observe(now - stream.arrived)
        else:
            gap = (now - stream.last_text) / max(1, tokens)
            self._timings["inter_token_latency_seconds"].observe(gap)
        stream.last_text = now

    def _spent(self, stream: EventStream, prompt_tokens: int, stats: Stats, now: float) -> None:
        """Count the cost of a request whose prompts have `prompt_tokens` tokens."""
        counted = {
            "prompt_tokens": prompt_tokens,
            "generation_tokens": stats.tokens,
            "prefix_cache_queries": prompt_tokens,
            "prefix_cache_hits": stats.cached,
            "diffusion_num_denoising_steps": stats.denoiser_calls,
            "diffusion_num_canvas_positions": stats.canvases * self._L,
            "diffusion_num_committed_tokens": stats.tokens,
            "repairs": stats.repairs,
            "pins": stats.pins,
            "rollbacks": stats.rollbacks,
            "compile_seconds": stats.compiling,
            "grammar_seconds": stats.seconds["guide"],
        }
        for name, value in counted.items():
            self._counters[name].inc(value)
        queued = stream.opened - stream.arrived + stats.queued
        self._timings["request_queue_time_seconds"].observe(queued)
        self._timings["request_prefill_time_seconds"].observe(stats.prefill)
        decode = max(0.0, now - stream.arrived - queued - stats.prefill)
        self._timings["request_decode_time_seconds"].observe(decode)

    def _ended(self, stream: EventStream, reason: str, now: float) -> None:
        self._ends.labels(self._label, reason).inc()
        self._timings["e2e_request_latency_seconds"].observe(now - stream.arrived)

    def _counter(self, name: str, help: str) -> Counter:
        counter = Counter(f"dlm:{name}", help, ["model_name"], registry=self._registry)
        return counter.labels(self._label)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(
            f"dlm:{name}", help, ["model_name"], registry=self._registry, buckets=buckets
        )
        return histogram.labels(self._label)


def merge_metrics(texts: Mapping[str, str]) -> bytes:
    """Join metrics `texts` by replica into one text, whose samples have a label `replica`."""
    families = dict[str, Metric]()
    for replica, text in texts.items():
        for family in text_string_to_metric_families(text):
            metric = Metric(family.name, family.documentation, family.type)
            samples = families.setdefault(family.name, metric).samples
            for sample in family.samples:
                samples.append(sample._replace(labels=sample.labels | {"replica": replica}))
    registry = CollectorRegistry()
    registry.register(_FixedCollector(families.values()))
    return generate_latest(registry)


class _FixedCollector(Collector):
    def __init__(self, families: Iterable[Metric]):
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
