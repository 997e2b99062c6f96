"""Metrics for Prometheus, under vLLM's names where they mean the same."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from k3stack.reference.engine import Engine

__all__ = ["Metrics"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_COUNTERS = (
    ("vllm:prompt_tokens", "Prompt tokens received.", "prompt_tokens"),
    ("vllm:generation_tokens", "Tokens answered.", "answer_tokens"),
    ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "queried_tokens"),
    ("vllm:prefix_cache_hits", "Prompt tokens found there.", "cached_tokens"),
    ("vllm:spec_decode_num_drafts", "Proposals of the draft.", "drafts"),
    ("vllm:spec_decode_num_draft_tokens", "Tokens it proposed.", "drafted_tokens"),
    ("vllm:spec_decode_num_accepted_tokens", "Proposed tokens that were accepted.", "accepted_tokens"),
    ("k3_reference_passes", "Forward passes.", "passes"),
    ("k3_reference_computed_tokens", "Tokens computed, of prompts and answers.", "computed_tokens"),
)


class Metrics:
    """Counts what clients see; reads the rest from the engine whenever somebody asks.

    Args:
        engine: read only.
        model: the label `model_name`.
    """

    def __init__(self, engine: Engine, model: str) -> None:
        self._engine = engine
        self._model = model
        self.registry = CollectorRegistry()
        self.registry.register(self)

        def histogram(name: str, what: str) -> Histogram:
            made = Histogram(name, what, ["model_name"], buckets=_SECONDS, registry=self.registry)
            labelled: Histogram = made.labels(model)
            return labelled

        self.first_token = histogram("vllm:time_to_first_token_seconds", "From the request to its first token.")
        self.between = histogram("vllm:inter_token_latency_seconds", "Between two updates of an answer.")
        self.whole = histogram("vllm:e2e_request_latency_seconds", "From the request to its last token.")
        self.requests: dict[tuple[str, int], int] = {}
        self.in_flight = 0

    def answered(self, path: str, status: int) -> None:
        """Count an HTTP answer."""
        self.requests[path, status] = self.requests.get((path, status), 0) + 1

    def text(self) -> bytes:
        """All metrics in Prometheus's text form."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        counters, scheduler = self._engine.counters, self._engine.scheduler
        for name, what, field in _COUNTERS:
            yield self._counter(name, what, getattr(counters, field))
        yield self._counter("vllm:num_preemptions", "Requests computed again for lack of pages.", scheduler.preemptions)
        finished = CounterMetricFamily(
            "vllm:request_success", "Requests by end.", labels=["model_name", "finished_reason"]
        )
        for reason, count in list(counters.finished.items()):
            finished.add_metric([self._model, "abort" if reason == "cancelled" else reason], count)
        yield finished
        for name, what, value in (
            ("vllm:num_requests_running", "Requests that run.", len(scheduler.running)),
            ("vllm:num_requests_waiting", "Requests that wait.", len(scheduler.waiting)),
            ("vllm:kv_cache_usage_perc", "Share of pages held by running requests, 0 to 1.", self._usage()),
            ("k3_reference_kept_prefixes", "Prefixes that can be resumed.", len(self._engine.cache.prefixes)),
            ("k3_reference_longest_pass_seconds", "The longest pass so far.", counters.longest_pass_s),
            ("k3_reference_http_in_flight", "HTTP requests being served.", self.in_flight),
        ):
            gauge = GaugeMetricFamily(name, what, labels=["model_name"])
            gauge.add_metric([self._model], value)
            yield gauge
        answers = CounterMetricFamily("k3_reference_http_requests", "Answers by status.", labels=["path", "status"])
        for (path, status), count in list(self.requests.items()):
            answers.add_metric([path, str(status)], count)
        yield answers

    def _counter(self, name: str, what: str, value: float) -> CounterMetricFamily:
        counter = CounterMetricFamily(name, what, labels=["model_name"])
        counter.add_metric([self._model], value)
        return counter

    def _usage(self) -> float:
        try:
            return self._engine.cache.used_share
        except RuntimeError:  # the engine's thread changed the set meanwhile
            return 0.0
