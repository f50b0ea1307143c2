"""The statistics of an engine for Prometheus: `registry(engine)` reads them at each scrape. Needs the extra `metrics`.

Covers names, kinds and labels; asynctile/measure/statistics.py measures. The program serves the registry itself, for example
with prometheus_client's ASGI app. Nothing here starts a thread or a task, or touches prometheus_client's global registry.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from asynctile.engine import Engine
from asynctile.errors import DeviceError
from asynctile.measure.statistics import Statistics

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
    from prometheus_client.registry import Collector
except ImportError:
    raise ImportError(
        "asynctile.metrics needs prometheus-client, which is not installed: pip install 'asynctile[metrics]' brings it"
    ) from None

__all__ = ["EngineCollector", "registry"]

#: Gauges of memory: the fields of Statistics by tier.
USED = {"device": "device_used_bytes", "host": "host_used_bytes", "spill": "spill_used_bytes"}
PEAK = {"device": "device_peak_bytes", "host": "host_peak_bytes", "spill": "spill_peak_bytes"}
CAP = {"device": "device_memory_bytes", "host": "host_memory_bytes", "spill": "spill_limit_bytes"}
#: The fields of moved bytes, by the way that the bytes take.
MOVED = {
    "upload": "uploaded_bytes", "download": "downloaded_bytes", "pass": "passed_bytes", "send": "sent_bytes",
    "receive": "received_bytes",
    "spill_read": "spill_read_bytes", "spill_write": "spill_written_bytes",
}  # fmt: skip
#: Counters by share alone: the name without _total, the field of Statistics, the help text.
COUNTERS = (
    ("asynctile_operations", "operations", "Operations that were run."),
    ("asynctile_spill_retries", "spill_retries", "Transfers to and from the spill file that were repeated and then succeeded."),
    ("asynctile_stall_seconds", "stall_s", "Seconds in which operations only waited for copies, where that is measured."),
    ("asynctile_waited_seconds", "waited_s", "Seconds that jobs waited for locks, memory or inputs of others."),
    ("asynctile_turn_seconds", "turn_s", "Seconds for which the share had the device."),
    ("asynctile_turn_waited_seconds", "turn_waited_s", "Seconds in which the share had a job while others had the turn."),
    ("asynctile_skipped_steps", "skipped_steps", "Training steps whose loss or gradient was not finite."),
    ("asynctile_step_tokens", "step_tokens", "Targets of training steps, without those of -100."),
    ("asynctile_request_tokens", "request_tokens", "Tokens generated for requests."),
)
SHARE = ("share",)


def registry(engine: Engine) -> CollectorRegistry:
    """Return a registry with the statistics of `engine`, by share. It can be made before the engine is opened.

    While the engine is not open, it has asynctile_open, 0, and nothing else. Any thread may scrape it.
    """
    found = CollectorRegistry()
    found.register(EngineCollector(engine))
    return found


class EngineCollector(Collector):
    """A collector to add to another registry: `theirs.register(EngineCollector(engine))`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics at this moment."""
        engine = self._engine
        yield GaugeMetricFamily("asynctile_open", "Whether the engine takes work.", value=int(engine.is_open))
        found: list[Statistics] = []
        if engine.is_open:
            try:
                found = [share.statistics() for share in engine.shares]
            except DeviceError:
                pass  # it is being opened or closed
        if found:
            yield from _memory(found)
            yield from _work(found)
            yield from _queues(found)


def _memory(found: Iterable[Statistics]) -> Iterator[Metric]:
    gauges = (
        ("asynctile_memory_used_bytes", "Bytes of tiles and of lent memory, by tier.", USED),
        ("asynctile_memory_peak_bytes", "The most bytes that were used, by tier.", PEAK),
        ("asynctile_memory_limit_bytes", "The cap on the bytes of a tier, where there is one.", CAP),
    )
    for name, text, fields in gauges:
        gauge = GaugeMetricFamily(name, text, labels=(*SHARE, "tier"))
        for statistics in found:
            for tier, field in fields.items():
                if (value := getattr(statistics, field)) is not None:
                    gauge.add_metric((statistics.share, tier), value)
        yield gauge


def _work(found: Iterable[Statistics]) -> Iterator[Metric]:
    moved = CounterMetricFamily("asynctile_moved_bytes", "Bytes that were moved between tiers.", labels=(*SHARE, "way"))
    steps = SummaryMetricFamily("asynctile_step_seconds", "Training steps, skipped ones too, and their time.", labels=SHARE)
    requests = SummaryMetricFamily("asynctile_request_seconds", "Requests for text, and their time.", labels=SHARE)
    for statistics in found:
        for way, field in MOVED.items():
            moved.add_metric((statistics.share, way), getattr(statistics, field))
        count = statistics.steps + statistics.skipped_steps
        steps.add_metric((statistics.share,), count_value=count, sum_value=statistics.step_s)
        requests.add_metric((statistics.share,), count_value=statistics.requests, sum_value=statistics.request_s)
    yield from (moved, steps, requests)
    for name, field, text in COUNTERS:
        counter = CounterMetricFamily(name, text, labels=SHARE)
        for statistics in found:
            if not math.isnan(value := getattr(statistics, field)):
                counter.add_metric((statistics.share,), value)
        yield counter


def _queues(found: Iterable[Statistics]) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("asynctile_waiting_jobs", "Jobs that wait for another job of their share.", labels=SHARE)
    waiting = GaugeMetricFamily("asynctile_queue_waiting", "Pieces of work that wait in a queue.", labels=(*SHARE, "queue"))
    running = GaugeMetricFamily("asynctile_queue_running", "Pieces of work that run from a queue.", labels=(*SHARE, "queue"))
    seen: set[str] = set()
    for statistics in found:
        jobs.add_metric((statistics.share,), statistics.waiting_jobs)
        for queue in statistics.queues:
            if queue.name in seen:
                continue  # all shares use the streams of the device; they are counted with the engine's
            labels = statistics.share, queue.name
            waiting.add_metric(labels, queue.waiting)
            running.add_metric(labels, queue.running)
        seen = seen or {queue.name for queue in statistics.queues if queue.name != "player"}
    yield from (jobs, waiting, running)
