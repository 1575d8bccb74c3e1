"""``GET /metrics``: what Prometheus scrapes.

Where vLLM has a metric of the same meaning, ours has its name with the prefix ``chatserve:`` instead of ``vllm:``, so
that its dashboards need one replacement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatserve.engine.async_engine import AsyncEngine
from chatserve.engine.latencies import Histogram
from chatserve.server.traffic import Traffic

_PREFIX = "chatserve:"
_STATUSES = ("ready", "draining", "dead")

# name: (name in `AsyncEngine.stats`, help)
_GAUGES = {
    "num_requests_running": ("requests_running", "Requests that run."),
    "num_requests_waiting": ("requests_waiting", "Requests that wait to be admitted or resumed."),
    "num_requests_preempted": ("requests_preempted", "Waiting requests that gave way before."),
    "num_sequences": ("sequences", "Live sequences of all requests."),
    "num_unfilled_slots": ("slots_unfilled", "Slots of used KV blocks that hold nothing."),
}
_COUNTERS = {
    "steps": ("steps", "Iterations of the engine."),
    "generation_tokens": ("tokens_published", "Tokens of answers."),
    "recomputed_tokens": ("tokens_recomputed", "Tokens computed again after a preemption."),
    "prefix_cache_hits": ("prefix_hit_tokens", "Tokens whose KV was found in the prefix cache."),
    "num_preemptions": ("preemptions", "Preemptions of requests."),
    "num_swap_preemptions": ("preemptions_by_swap", "Preemptions by swapping."),
    "requests_exhausted": ("requests_exhausted", "Requests that outgrew the KV pool on their own."),
    "copies_on_write": ("copies_on_write", "KV blocks copied because a shared one was written to."),
}
_BLOCK_STATES = ("used", "cached", "pinned", "swapped")
_HISTOGRAMS = {
    "time_to_first_token_seconds": ("first_token", "Time from acceptance to the first news of an answer."),
    "inter_token_latency_seconds": ("inter_token", "Time between successive news of a choice."),
    "e2e_request_latency_seconds": ("whole", "Time from acceptance to the end of an answer."),
}


class MetricsRoutes:
    """The metrics of one engine and of the requests to it."""

    def __init__(self, engine: AsyncEngine, traffic: Traffic) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(EngineCollector(engine, traffic))

    def routes(self) -> list[Route]:
        return [Route("/metrics", self.scrape)]

    async def scrape(self, request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


class EngineCollector(Collector):
    """Reads the engine's own counters when it is asked; nothing is counted twice. Use it on the loop's thread."""

    def __init__(self, engine: AsyncEngine, traffic: Traffic) -> None:
        self._engine = engine
        self._traffic = traffic
        self._model = engine.info.name

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        for name, (key, text) in _GAUGES.items():
            yield self._gauge(name, text, [((), stats[key])])
        for name, (key, text) in _COUNTERS.items():
            yield self._counter(name, text, [((), stats[key])])
        yield self._counter("prompt_tokens", "Tokens of prompts.", [((), self._engine.latencies.num_prompt_tokens)])
        yield from self._blocks(stats)
        yield from self._parts(stats)
        yield from self._latencies()
        yield from self._requests()
        status = self._engine.status
        states = [((name,), float(name == status)) for name in _STATUSES]
        yield self._gauge("engine_status", "1 for the state the engine is in.", states, ["status"])

    def _blocks(self, stats: dict[str, float]) -> Iterator[Metric]:
        counts = [((state,), stats[f"blocks_{state}"]) for state in _BLOCK_STATES]
        total = stats["blocks_total"]
        yield self._gauge("num_kv_blocks", "KV blocks of the pool.", [((), total)])
        yield self._gauge("kv_blocks", "KV blocks by what they hold.", counts, ["state"])
        yield self._gauge(
            "kv_cache_usage_perc", "Used share of the KV pool, 1 is all.", [((), stats["blocks_used"] / total)]
        )

    def _parts(self, stats: dict[str, float]) -> Iterator[Metric]:
        prefix = "seconds_"
        parts = [((key.removeprefix(prefix),), value) for key, value in stats.items() if key.startswith(prefix)]
        yield self._counter("step_seconds", "Time spent in each part of an iteration.", parts, ["part"])
        decoders = [((name,), value) for name, value in self._engine.decoder_seconds().items()]
        yield self._counter("decoder_seconds", "Time spent in the code of each decoder.", decoders, ["decoder"])

    def _latencies(self) -> Iterator[Metric]:
        by_decoder = self._engine.latencies.by_decoder
        for name, (attribute, text) in _HISTOGRAMS.items():
            values = [((decoder,), getattr(latencies, attribute)) for decoder, latencies in by_decoder.items()]
            yield self._histogram(name, text, values, ["decoder"])
        ends = [
            ((reason, decoder), count)
            for decoder, latencies in by_decoder.items()
            for reason, count in latencies.ends.items()
        ]
        text = "Choices by how they ended; requests that broke or were abandoned count as error and abort."
        yield self._counter("request_success", text, ends, ["finished_reason", "decoder"])

    def _requests(self) -> Iterator[Metric]:
        counts = [
            ((method, route, str(status)), count) for (method, route, status), count in self._traffic.requests.items()
        ]
        yield self._counter(
            "http_requests", "HTTP requests; 499: the client left first.", counts, ["method", "route", "status"]
        )
        text = "Time from the head of an HTTP request to the last byte of its answer."
        yield self._histogram("http_request_duration_seconds", text, self._traffic.seconds.items(), ["method", "route"])

    def _gauge(self, name: str, text: str, values: Iterable[Any], labels: Iterable[str] = ()) -> Metric:
        return self._filled(GaugeMetricFamily(_PREFIX + name, text, labels=["model_name", *labels]), values)

    def _counter(self, name: str, text: str, values: Iterable[Any], labels: Iterable[str] = ()) -> Metric:
        return self._filled(CounterMetricFamily(_PREFIX + name, text, labels=["model_name", *labels]), values)

    def _histogram(
        self, name: str, text: str, values: Iterable[tuple[Iterable[str], Histogram]], labels: Iterable[str]
    ) -> Metric:
        metric = HistogramMetricFamily(_PREFIX + name, text, labels=["model_name", *labels])
        for given, histogram in values:
            metric.add_metric([self._model, *given], _buckets(histogram), histogram.total)
        return metric

    def _filled(self, metric: GaugeMetricFamily | CounterMetricFamily, values: Iterable[Any]) -> Metric:
        for labels, value in values:
            metric.add_metric([self._model, *labels], value)
        return metric


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    return [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in histogram.cumulative()]
