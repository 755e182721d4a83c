"""Prometheus metrics of this process: what the controller has done since it started.

Labels never hold ids or text of users, so the number of series stays small. ``BulkHistogram``
counts thousands of values in one call, where the client library's own histogram takes one at a
time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


def render_families(families: Iterable[Metric]) -> bytes:
    """Return families that were just read, rather than counted, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(ReadFamilies(families))
    return generate_latest(registry)


class ReadFamilies(Collector):
    """Families for one scrape."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self.families = [*families]

    def collect(self) -> Iterable[Metric]:
        return self.families


class BulkHistogram(Collector):
    """Counts values by a label and by the first bound that they do not exceed.

    Args:
        name: Of the metric.
        help_text: What it says.
        label: Name of its label.
        bounds: Ascending; a value above the last is counted in a bucket of its own.
    """

    def __init__(self, name: str, help_text: str, label: str, bounds: tuple[float, ...]) -> None:
        self.name, self.help_text, self.label = name, help_text, label
        self.bounds = np.array(bounds)
        self._counts: dict[str, NDArray[np.int64]] = {}
        self._sums: dict[str, float] = {}
        self._turn = threading.Lock()

    def observe(self, values: Mapping[str, NDArray[np.float64]]) -> None:
        """Count values, by the label's value; those that are not finite are left out."""
        for word, column in values.items():
            finite = column[np.isfinite(column)]
            places = np.searchsorted(self.bounds, finite)
            counts = np.bincount(places, minlength=len(self.bounds) + 1)
            with self._turn:
                self._counts[word] = self._counts.get(word, np.int64(0)) + counts
                self._sums[word] = self._sums.get(word, 0.0) + float(finite.sum())

    def collect(self) -> Iterable[HistogramMetricFamily]:
        family = HistogramMetricFamily(self.name, self.help_text, labels=[self.label])
        names = [*map(str, self.bounds.tolist()), "+Inf"]
        with self._turn:
            for word, counts in self._counts.items():
                buckets = list(zip(names, np.cumsum(counts).tolist(), strict=True))
                family.add_metric([word], buckets, self._sums[word])
        yield family


disable_created_metrics()  # type: ignore[no-untyped-call]  # else each counter has a second series
REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

SHORT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LONG_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

BUILD_INFO = Info("scavenger_build", "Version of the controller that answers.", registry=REGISTRY)
BUILD_INFO.info({"version": version("scavenger")})

LAUNCH_RESULTS = Counter(
    "scavenger_launch_total",
    "Machines a provider was asked for, by what it answered and why.",
    ("result", "reason"),
    registry=REGISTRY,
)
PREEMPTIONS = Counter(
    "scavenger_preemptions_total",
    "Machines that their clouds took back, with a notice or without a word.",
    registry=REGISTRY,
)
WEBHOOK_TRIES = Counter(
    "scavenger_webhook_tries_total",
    "Requests to webhooks: delivered, or failed.",
    ("result",),
    registry=REGISTRY,
)
RESIZE_EVENTS = Counter(
    "scavenger_resize_total",
    "Changes of workers or batch: ordered by this controller, entered by the workers.",
    ("result",),
    registry=REGISTRY,
)
RESIZE_SECONDS = Histogram(
    "scavenger_resize_seconds",
    "Seconds of training a change of workers or batch took.",
    registry=REGISTRY,
    buckets=LONG_BUCKETS,
)
TELEMETRY_RECORDS = Counter(
    "scavenger_telemetry_records_total",
    "Measured iterations, by what became of them.",
    ("verdict",),
    registry=REGISTRY,
)
PASS_SECONDS = Histogram(
    "scavenger_reconcile_seconds",
    "Seconds of one pass of the reconciler.",
    registry=REGISTRY,
    buckets=LONG_BUCKETS,
)
LEASES_LOST = Counter(
    "scavenger_lease_lost_total",
    "Times another controller had taken a job over.",
    registry=REGISTRY,
)
SWEEP_RESULTS = Counter(
    "scavenger_sweeps_total",
    "Sweeps for orphaned machines, by result.",
    ("result",),
    registry=REGISTRY,
)
PROVIDER_CALL_SECONDS = Histogram(
    "scavenger_provider_call_seconds",
    "Seconds of a call to a cloud, by operation and result.",
    ("op", "result"),
    registry=REGISTRY,
    buckets=LONG_BUCKETS,
)
PENDING_CLOUD_BATCHES = Gauge(
    "scavenger_provider_trips",
    "Batches of cloud calls that are queued or running, by executor.",
    ("to",),
    registry=REGISTRY,
)
CLOUD_CALL_AGE = Gauge(
    "scavenger_provider_call_age_seconds",
    "Seconds since the oldest call to a cloud began that has not ended.",
    ("to",),
    registry=REGISTRY,
)
ITERATION_SECONDS = BulkHistogram(
    "scavenger_iteration_seconds",
    "Seconds of measured iterations, by what they were spent on.",
    "part",
    SHORT_BUCKETS,
)
REGISTRY.register(ITERATION_SECONDS)
REQUEST_SECONDS = Histogram(
    "scavenger_request_seconds",
    "Seconds of a request, by method, template of its route, and status.",
    ("method", "route", "status"),
    registry=REGISTRY,
    buckets=SHORT_BUCKETS,
)
