"""The measured series of a job, read and made small enough to be drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby

import numpy as np
from sqlalchemy import Connection

from scavenger.cluster import ClusterConfig
from scavenger.measurement.profiling import Observation
from scavenger.protocol import StopAtMetric
from scavenger.schemas.telemetry import SeriesView, TelemetryView
from service.db import directives, measurements, partitions, series, workers
from service.db.directives import PublishedDirective
from service.db.jobs import StoredJob
from service.db.measurements import SettledProbe
from service.db.series import StoredChunk
from service.db.step_arrays import FloatArray, unpack_columns
from service.state.job_state import LOSS_SERIES
from service.state.series import (
    MeasuredSeries,
    bucket_series,
    concatenate,
    rolling_noise,
    row_times,
    usual_gap,
)

MAX_ROWS = 4_000_000  # of one answer: about 200 MB while it is made
NORMS = ("shards", "local_norm_sq", "mean_norm_sq")
# Every series but the job's metric: its unit, and the columns it is made of.
ITERATION_SERIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    LOSS_SERIES: ("", ("loss",)),
    "step_time": ("s", ("step_time",)),
    "compute_time": ("s", ("compute_time",)),
    "sync_time": ("s", ("sync_time",)),
    "samples_per_second": ("samples/s", ("step_time",)),
    "noise": ("", NORMS),
    "noise_scale": ("samples", NORMS),
}
CONFIG_SERIES: Mapping[str, tuple[str, Callable[[ClusterConfig], int]]] = {
    "workers": ("workers", lambda config: config.workers),
    "global_batch": ("samples", lambda config: config.global_batch),
}


@dataclass(frozen=True, slots=True)
class TelemetryQuery:
    """Which series, of which span, in how many buckets."""

    names: tuple[str, ...]
    since: datetime
    until: datetime
    points: int


@dataclass(frozen=True, slots=True)
class MeasuredIterations:
    """Iterations of a job in order of time.

    Attributes:
        at: When each ended.
        columns: What was measured, by name.
        global_batch: Samples of each.
    """

    at: FloatArray
    columns: Mapping[str, FloatArray]
    global_batch: FloatArray


def series_names(job: StoredJob) -> tuple[str, ...]:
    """Return the names of all series a job may have."""
    stop = job.spec.stop_rule
    metric = (stop.metric,) if isinstance(stop, StopAtMetric) else ()
    return tuple(dict.fromkeys((*ITERATION_SERIES, *CONFIG_SERIES, *metric)))


def load_telemetry(connection: Connection, job: StoredJob, wanted: TelemetryQuery) -> TelemetryView:
    """Read series of a job, in buckets."""
    history = directives.history(connection, job.id)
    names = [name for name in wanted.names if name in ITERATION_SERIES]
    since, until = wanted.since.timestamp(), wanted.until.timestamp()
    found: dict[str, MeasuredSeries] = {}
    kept = partitions.kept_from(connection)
    iterations_from = kept if names and kept is not None and wanted.since < kept else None
    if names:
        stored = series.newest_chunks(connection, job.id, wanted.since, wanted.until, MAX_ROWS)
        measured = read_iterations(stored, names, history)
        is_logged = LOSS_SERIES not in names or has_logged_odd_loss(connection, job.id)
        found |= {name: iteration_series(name, measured, is_logged) for name in names}
        if stored and sum(each.rows for each in stored) >= MAX_ROWS:
            since = max(since, float(measured.at[0]))
    if iterations_from is not None:
        settled = measurements.probes_of_jobs(connection, [job.id])[job.id]
        dropped = [probe for probe in settled if probe.settled_at < iterations_from]
        found |= {name: join_series(probe_series(name, dropped), found[name]) for name in names}
    for name in wanted.names:
        if name in CONFIG_SERIES:
            found[name] = config_series(name, history, since, until)
        elif name not in found:
            found[name] = metric_series(connection, job.id)
    shown = [
        series_view(name, found[name].within(since, until), wanted.points) for name in wanted.names
    ]
    span = {"from": max(wanted.since, to_moment(since)), "to": wanted.until}
    return TelemetryView.model_validate(
        {**span, "series": shown, "iterations_from": iterations_from}
    )


def read_iterations(
    stored: Sequence[StoredChunk], names: Sequence[str], history: Sequence[PublishedDirective]
) -> MeasuredIterations:
    """Unpack what some series need, and say when each iteration took place."""
    columns = {"step_time", *(column for name in names for column in ITERATION_SERIES[name][1])}
    batches = {each.directive.generation: each.directive.config.global_batch for each in history}
    at, rows, unpacked = list[FloatArray](), list[int](), list[dict[str, FloatArray]]()
    batch_of = list[float]()
    for _, reports in groupby(stored, lambda each: each.worker):
        own = list(reports)
        parts = [unpack_columns(each.columns, columns) for each in own]
        counts = np.array([each.rows for each in own])
        received = np.array([each.received for each in own])
        at.append(row_times(received, counts, concatenate([one["step_time"] for one in parts])))
        unpacked += parts
        rows += counts.tolist()
        batch_of += [batches.get(each.generation, np.nan) for each in own]
    moments = np.round(concatenate(at), 6)  # as the answer shows them, so that one may begin there
    order = np.argsort(moments, kind="stable")
    return MeasuredIterations(
        moments[order],
        {name: concatenate([one[name] for one in unpacked])[order] for name in columns},
        np.repeat(np.array(batch_of, np.float64), np.array(rows, np.int64))[order],
    )


def iteration_series(name: str, measured: MeasuredIterations, is_logged: bool) -> MeasuredSeries:
    """Return one series of measured iterations.

    Args:
        name: Which.
        measured: The iterations.
        is_logged: Whether a loss that is missing was NaN or infinite; else it was never logged.
    """
    at, columns = measured.at, measured.columns
    match name:
        case "noise" | "noise_scale":
            return noise_series(name, measured)
        case "samples_per_second":
            with np.errstate(divide="ignore", invalid="ignore"):
                values = measured.global_batch / columns["step_time"]
            values[~np.isfinite(values)] = np.nan
        case _:
            values = columns[ITERATION_SERIES[name][1][0]]
    odd = int(np.isnan(values).sum()) if name != LOSS_SERIES or is_logged else 0
    if name == LOSS_SERIES and not is_logged:
        at, values = at[~np.isnan(values)], values[~np.isnan(values)]
    return MeasuredSeries(at, values, odd, usual_gap(at))


def probe_series(name: str, probes: Sequence[SettledProbe]) -> MeasuredSeries:
    """Return what probes measured of a series, which is kept when their iterations are not."""
    known = [
        (probe.settled_at.timestamp(), value)
        for probe in sorted(probes, key=lambda each: each.settled_at)
        if (value := probed_value(name, probe.observation)) is not None
    ]
    return MeasuredSeries(np.array([at for at, _ in known]), np.array([each for _, each in known]))


def probed_value(name: str, observation: Observation) -> float | None:
    """Return what a probe says of a series of iterations; None where it says nothing."""
    indicators = observation.indicators
    match name:
        case "samples_per_second":
            step_time = indicators.step_time
            return observation.config.global_batch / step_time if step_time else None
        case "noise" | "noise_scale" | "step_time" | "compute_time" | "sync_time":
            value: float | None = getattr(indicators, name)
            return value
        case _:
            return None


def join_series(before: MeasuredSeries, after: MeasuredSeries) -> MeasuredSeries:
    """Return a series that goes on with another, whose gaps it has."""
    return replace(
        after,
        at=np.concatenate([before.at, after.at]),
        values=np.concatenate([before.values, after.values]),
    )


def noise_series(name: str, measured: MeasuredIterations) -> MeasuredSeries:
    """Return γ or φ of the iterations that tell it."""
    shards, local, mean = (measured.columns[column] for column in NORMS)
    is_sharded = shards > 1
    is_usable = is_sharded & np.isfinite(local) & np.isfinite(mean)
    at, batch = measured.at[is_usable], measured.global_batch[is_usable]
    noise, scale = rolling_noise(local[is_usable], mean[is_usable], shards[is_usable], batch)
    odd = int((is_sharded & ~is_usable).sum())
    return MeasuredSeries(at, noise if name == "noise" else scale, odd, usual_gap(at))


def config_series(
    name: str, history: Sequence[PublishedDirective], since: float, until: float
) -> MeasuredSeries:
    """Return a part of the configuration: it holds from one change to the next, and to the end."""
    value_of = CONFIG_SERIES[name][1]
    changes = [
        (
            each.published_at.timestamp() + (each.pause or 0.0),
            float(value_of(each.directive.config)),
        )
        for each in history
    ]
    held = [value for at, value in changes if at <= since][-1:]
    inside = [(since, value) for value in held]
    inside += [(at, value) for at, value in changes if since < at <= until]
    inside += [(until, inside[-1][1])] if inside else []
    return MeasuredSeries(
        np.array([at for at, _ in inside]), np.array([value for _, value in inside])
    )


def metric_series(connection: Connection, job: str) -> MeasuredSeries:
    """Return the readings of the target's metric."""
    known = measurements.dated_readings(connection, job)
    at = np.array([moment.timestamp() for moment, _ in known])
    return MeasuredSeries(at, np.array([value for _, value in known]))


def has_logged_odd_loss(connection: Connection, job: str) -> bool:
    """Tell whether a worker ever logged a loss that was NaN or infinite."""
    return any(LOSS_SERIES in each.not_finite for each in workers.of_job(connection, job))


def series_view(name: str, measured: MeasuredSeries, points: int) -> SeriesView:
    """Show a series in buckets."""
    buckets = bucket_series(measured, points)
    units = {**ITERATION_SERIES, **CONFIG_SERIES}
    return SeriesView(
        name=name,
        unit=units[name][0] if name in units else "",
        at=[to_moment(at) for at in buckets.at.tolist()],
        low=to_optional(buckets.low),
        high=to_optional(buckets.high),
        nonfinite=measured.nonfinite,
    )


def to_optional(values: FloatArray) -> list[float | None]:
    """Return values as JSON can hold them."""
    return [None if value != value else value for value in values.tolist()]


def to_moment(seconds: float) -> datetime:
    """Return a moment."""
    return datetime.fromtimestamp(seconds, UTC)
