"""Meters: what this controller itself did since it started, counted for Prometheus.

No label holds what a user wrote or an id, so their number stays small however long this runs.
"""

from __future__ import annotations

from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)

from service.bins import Bins

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, which nobody asks for
REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LONG = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

BUILD = Info("scavenger_build", "Version of the controller that answers.", registry=REGISTRY)
BUILD.info({"version": version("scavenger")})

LAUNCHES = Counter(
    "scavenger_launch_total",
    "Machines a provider was asked for, by what it answered and why.",
    ("result", "reason"),
    registry=REGISTRY,
)
PREEMPTIONS = Counter(
    "scavenger_preemptions_total",
    "Machines that went away though nobody told them to and their command had not ended.",
    registry=REGISTRY,
)
RESIZES = Counter(
    "scavenger_resize_total",
    "Changes of workers or batch: ordered by this controller, entered by the workers.",
    ("result",),
    registry=REGISTRY,
)
RESIZE_SECONDS = Histogram(
    "scavenger_resize_seconds",
    "Seconds of training a change of workers or batch took.",
    registry=REGISTRY,
    buckets=LONG,
)
RECORDS = Counter(
    "scavenger_telemetry_records_total",
    "Measured iterations, by what became of them.",
    ("verdict",),
    registry=REGISTRY,
)
PASSES = Histogram(
    "scavenger_reconcile_seconds",
    "Seconds of one pass over all jobs.",
    registry=REGISTRY,
    buckets=LONG,
)
LEASES_LOST = Counter(
    "scavenger_lease_lost_total",
    "Times another controller had taken a job over.",
    registry=REGISTRY,
)
SWEEPS = Counter(
    "scavenger_sweeps_total",
    "Looks for machines that nobody wants, by what came of them.",
    ("result",),
    registry=REGISTRY,
)
PROVIDER_CALLS = Histogram(
    "scavenger_provider_call_seconds",
    "Seconds of a call to a cloud, by operation and result.",
    ("op", "result"),
    registry=REGISTRY,
    buckets=LONG,
)
TRIPS = Gauge(
    "scavenger_provider_trips",
    "Trips to clouds that are not over, those that wait for their turn too, by what they are for.",
    ("to",),
    registry=REGISTRY,
)
CALL_AGE = Gauge(
    "scavenger_provider_call_age_seconds",
    "Seconds since the oldest call to a cloud began that has not ended.",
    ("to",),
    registry=REGISTRY,
)
ITERATIONS = Bins(
    "scavenger_iteration_seconds",
    "Seconds of measured iterations, by what they were spent on.",
    "part",
    SHORT,
)
REGISTRY.register(ITERATIONS)
REQUESTS = Histogram(
    "scavenger_request_seconds",
    "Seconds of a request, by method, template of its route, and status.",
    ("method", "route", "status"),
    registry=REGISTRY,
    buckets=SHORT,
)
