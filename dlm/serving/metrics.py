"""What dashboards read, in Prometheus' form, under the names that vLLM's users know.

Times are the engine's and the event loop's own, in seconds.

The metrics of several servers as those of one, in Prometheus' form.
"""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from dlm.engine import Occupancy
from dlm.events import Committed, Decided, Event, Failed, Finished
from dlm.request import Stats
from dlm.serving.async_engine import EventStream

_TIMES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)  # seconds
_RATES = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # tokens

_COUNTERS = {
    "prompt_tokens": "Tokens of prompts.",
    "generation_tokens": "Tokens of answers.",
    "questions": "Questions that decisions answered.",
    "prefix_cache_queries": "Tokens of prompts that were looked for in the cache.",
    "prefix_cache_hits": "Tokens of prompts that were found there.",
    "diffusion_num_denoising_steps": "Passes over canvases.",
    "diffusion_num_canvas_positions": "Positions of all canvases that were begun.",
    "diffusion_num_committed_tokens": "Tokens that canvases came to.",
    "repairs": "Passes in which a grammar refused the model's own choice.",
    "pins": "Times that positions were fixed because a canvas was stuck.",
    "rollbacks": "Choices that were taken back.",
    "compile_seconds": "Seconds that requests waited for their grammars.",
    "grammar_seconds": "Seconds in which grammars were asked; of shared passes, for each.",
}
_TIMINGS = {
    "time_to_first_token_seconds": "From a request's arrival to its first text.",
    "inter_token_latency_seconds": "From one text of an answer to the next, a token.",
    "e2e_request_latency_seconds": "From a request's arrival to its end.",
    "request_queue_time_seconds": "From a request's arrival to its slot.",
    "request_prefill_time_seconds": "From there to the end of its first pass over a canvas.",
    "request_decode_time_seconds": "From there to its end.",
}


class Metrics:
    """Hears of events, and is read by `text`. Owns its registry: nothing is global."""

    def __init__(self, model: str, canvas_length: int, occupancy: Callable[[], Occupancy]):
        """`model` labels all of them. `occupancy` is asked when they are read."""
        self._registry, self._label, self._L = CollectorRegistry(), model, canvas_length
        self._counters = {name: self._counter(name, what) for name, what in _COUNTERS.items()}
        self._timings = {name: self._timing(name, what) for name, what in _TIMINGS.items()}
        self._per_pass = self._histogram("tokens_per_pass", "Tokens a pass, by request.", _RATES)
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
            "num_requests_waiting": ("Requests without one.", lambda: occupancy().waiting),
            "kv_cache_usage_perc": ("Share of the cache that is held.", lambda: occupancy().cache),
        }
        for name, (what, read) in gauges.items():
            gauge = Gauge(f"dlm:{name}", what, ["model_name"], registry=self._registry)
            gauge.labels(model).set_function(read)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def on_event(self, stream: EventStream, event: Event, now: float) -> None:
        """Of every event of a request, at the time `now` of `perf_counter`."""
        match event:
            case Committed(tokens=tokens):
                self._committed(stream, len(tokens), now)
            case Finished(result=result):
                self._per_pass.observe(result.stats.tokens_per_call)
                self._spent(stream, result.prompt_tokens, result.stats, now)
                self._ended(stream, result.finish_reason, now)
            case Decided(answers=answers, stats=stats):
                self._counters["questions"].inc(len(answers))
                self._spent(stream, sum(one.prompt_tokens for one in answers), stats, now)
                self._ended(stream, "decided", now)
            case Failed():
                self._ended(stream, "error", now)

    def on_abandoned(self, stream: EventStream, now: float) -> None:
        """Its reader went away before its end."""
        self._ended(stream, "abort", now)

    def _committed(self, stream: EventStream, tokens: int, now: float) -> None:
        if stream.last_text is None:
            self._timings["time_to_first_token_seconds"].observe(now - stream.arrived)
        else:
            gap = (now - stream.last_text) / max(1, tokens)
            self._timings["inter_token_latency_seconds"].observe(gap)
        stream.last_text = now

    def _spent(self, stream: EventStream, read: int, stats: Stats, now: float) -> None:
        """What a request cost whose prompts have so many tokens to be `read`."""
        counted = {
            "prompt_tokens": read,
            "generation_tokens": stats.tokens,
            "prefix_cache_queries": read,
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

    def _counter(self, name: str, what: str) -> Counter:
        counter = Counter(f"dlm:{name}", what, ["model_name"], registry=self._registry)
        return counter.labels(self._label)

    def _timing(self, name: str, what: str) -> Histogram:
        return self._histogram(name, what, _TIMES)

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(
            f"dlm:{name}", what, ["model_name"], registry=self._registry, buckets=buckets
        )
        return histogram.labels(self._label)


def merge_metrics(texts: Mapping[str, str]) -> bytes:
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
