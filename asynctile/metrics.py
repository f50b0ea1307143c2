"""An engine's statistics for Prometheus: `registry(engine)`, read when it is scraped. Needs the extra `metrics`.

Covers names, kinds and labels. What is measured is asynctile/measure/statistics.py; how it is served (prometheus_client has an
ASGI app, among others) is the program's affair. No thread, no task, and nothing in prometheus_client's global registry.
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

#: Gauges of memory: what stands behind `device_`, `host_` and `spill_` of Statistics.
USED = {"device": "device_used_bytes", "host": "host_used_bytes", "spill": "spill_used_bytes"}
PEAK = {"device": "device_peak_bytes", "host": "host_peak_bytes", "spill": "spill_peak_bytes"}
CAP = {"device": "device_memory_bytes", "host": "host_memory_bytes", "spill": "spill_limit_bytes"}
#: Ways that bytes of tiles take.
MOVED = {
    "upload": "uploaded_bytes", "download": "downloaded_bytes",
    "spill_read": "spill_read_bytes", "spill_write": "spill_written_bytes",
}  # fmt: skip
#: Counters by share alone: the name without _total, the field, what it is.
COUNTERS = (
    ("asynctile_operations", "operations", "Operations that were run."),
    ("asynctile_spill_retries", "spill_retries", "Transfers to and from the spill file that were repeated and then went well."),
    ("asynctile_stall_seconds", "stall_s", "Time in which operations only waited for copies, where that is measured."),
    ("asynctile_waited_seconds", "waited_s", "Time that jobs have waited for what others hold."),
    ("asynctile_turn_seconds", "turn_s", "Time for which the share had the device."),
    ("asynctile_turn_waited_seconds", "turn_waited_s", "Time in which the share had a job and others the turn."),
    ("asynctile_skipped_steps", "skipped_steps", "Training steps whose loss or gradient was not finite."),
    ("asynctile_step_tokens", "step_tokens", "Targets of training steps, those of -100 left out."),
    ("asynctile_request_tokens", "request_tokens", "Tokens that were written for requests."),
)
SHARE = ("share",)


def registry(engine: Engine) -> CollectorRegistry:
    """A registry of its own with what `engine` has to say, by share; made at any time, also before the engine is opened.

    While the engine is not open there is asynctile_open, 0, and nothing else. Any thread may scrape it.
    """
    found = CollectorRegistry()
    found.register(EngineCollector(engine))
    return found


class EngineCollector(Collector):
    """For a registry that others use as well: `theirs.register(EngineCollector(engine))`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """The metrics at this moment."""
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
        ("asynctile_memory_used_bytes", "Bytes of tiles, and what is lent, by tier.", USED),
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
    jobs = GaugeMetricFamily("asynctile_waiting_jobs", "Jobs that wait until another of their share is over.", labels=SHARE)
    waiting = GaugeMetricFamily("asynctile_queue_waiting", "Pieces of work that wait.", labels=(*SHARE, "queue"))
    running = GaugeMetricFamily("asynctile_queue_running", "Pieces of work that run.", labels=(*SHARE, "queue"))
    seen: set[str] = set()
    for statistics in found:
        jobs.add_metric((statistics.share,), statistics.waiting_jobs)
        for queue in statistics.queues:
            if queue.name in seen:
                continue  # a stream of the device, which all shares use: it stands with the engine's
            labels = statistics.share, queue.name
            waiting.add_metric(labels, queue.waiting)
            running.add_metric(labels, queue.running)
        seen = seen or {queue.name for queue in statistics.queues if queue.name != "player"}
    yield from (jobs, waiting, running)
