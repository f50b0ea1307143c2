"""The metrics page: every metric of asynctile.metrics with its kind, labels and help, as a scrape would show them."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from prometheus_client.core import Metric

from asynctile.measure.statistics import Queue, Statistics
from asynctile.metrics import EngineCollector
from asynctile_docs.docstring import check, inline

__all__ = ["families", "metric_list"]


class _Engine:
    """An engine as the collector sees it, without a device: open, with one share that has a number for everything."""

    is_open = True

    @property
    def shares(self) -> tuple[_Engine]:
        return (self,)

    def statistics(self) -> Statistics:
        """Return a snapshot with a cap for every tier and one queue."""
        values: dict[str, Any] = {field.name: 1 for field in fields(Statistics) if field.default is MISSING}
        return Statistics(**{**values, "device": "cpu", "queues": (Queue("compute", 0, 0),)})


def families() -> list[Metric]:
    """Return every family of metrics that an open engine has, with one sample for each set of labels."""
    return list(EngineCollector(_Engine()).collect())  # type: ignore[arg-type]


def metric_list() -> str:
    """Return the Markdown of all metrics. Raises Undocumented for metrics without help."""
    check(family.name for family in families() if not family.documentation)
    return "\n\n".join(map(_entry, families()))


def _entry(family: Metric) -> str:
    names = dict.fromkeys(sample.name for sample in family.samples)
    labels: dict[str, list[str]] = {}
    for sample in family.samples:
        for label, value in sample.labels.items():
            labels.setdefault(label, []).append(value)
    lines = [", ".join(f"`{name}`" for name in names), f": {inline(family.documentation)}", "", f"  A {family.type}."]
    told = []
    for label, values in labels.items():
        each = f" ({', '.join(dict.fromkeys(values))})" if label in ("tier", "way") else ""
        told.append(f"`{label}`{each}")
    lines[-1] += f" Labels: {', '.join(told)}." if told else " No labels."
    return "\n".join(lines)
