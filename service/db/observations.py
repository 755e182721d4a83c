"""The observations table: settled probes and what they took."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, Row, select
from sqlalchemy.dialects.postgresql import insert

from scavenger.cluster import ClusterConfig
from scavenger.indicators import Observation, ScalingIndicators
from service.db.grouping import by_job
from service.db.schema import observations


@dataclass(frozen=True, slots=True)
class Probe:
    """A settled probe and its price.

    Attributes:
        seconds: Time spent on this configuration to learn it.
        cost: Dollars spent meanwhile.
    """

    observation: Observation
    seconds: float
    cost: Decimal
    settled_at: datetime


def record(connection: Connection, job: str, probe: Probe) -> None:
    """Store a settled probe; the first of its kind of a configuration counts."""
    config, indicators = probe.observation.config, probe.observation.indicators
    row = {
        "job": job,
        "workers": config.workers,
        "global_batch": config.global_batch,
        "has_settled_noise": probe.observation.has_settled_noise,
        "noise": indicators.noise,
        "noise_scale": indicators.noise_scale,
        "compute_time": indicators.compute_time,
        "sync_time": indicators.sync_time,
        "iterations": probe.observation.iterations,
        "seconds": probe.seconds,
        "cost": probe.cost,
        "settled_at": probe.settled_at,
    }
    connection.execute(insert(observations).values(row).on_conflict_do_nothing())


def of_job(connection: Connection, job: str) -> tuple[Probe, ...]:
    """Return a job's probes in the order they settled."""
    return of_jobs(connection, [job])[job]


def of_jobs(connection: Connection, wanted: Collection[str]) -> Mapping[str, tuple[Probe, ...]]:
    """Return the probes of these jobs, by job, in the order they settled."""
    query = select(observations).where(observations.c.job.in_(wanted))
    rows = by_job(wanted, connection.execute(query.order_by(observations.c.settled_at)))
    return {job: tuple(map(probe_of, own)) for job, own in rows.items()}


def probe_of(row: Row[Any]) -> Probe:
    """Turn a row into a Probe."""
    return Probe(
        Observation(
            ClusterConfig(row.workers, row.global_batch),
            ScalingIndicators(row.noise, row.noise_scale, row.compute_time, row.sync_time),
            row.iterations,
            row.has_settled_noise,
        ),
        row.seconds,
        row.cost,
        row.settled_at,
    )
