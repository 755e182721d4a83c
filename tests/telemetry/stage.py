"""A job with machines that said hello, written into a database, and what they may have measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
from sqlalchemy import Connection

from scavenger.protocol import Hello, StepColumns
from service.db import jobs, vms, workers
from service.db.statistics import FADE, Statistic
from tests.builders import spec


def set_up(connection: Connection, job: str, number: int) -> list[str]:
    """Write a job with so many machines that said hello; returns their names."""
    now = datetime.now(UTC)
    jobs.create(connection, job, spec(), now)
    for place in range(1, number + 1):
        terms = vms.Terms(Decimal("0.36"))
        vms.intend(connection, job, place, terms, now, timedelta(hours=9))
        workers.greet(connection, job, Hello(f"{job}-w{place}", "127.0.0.1:1"), now)
    return [f"{job}-w{place}" for place in range(1, number + 1)]


def measured(first: int, rows: int, seed: int = 0) -> StepColumns:
    """Return rows as a leader may measure them, with some norms and losses missing."""
    chance = np.random.default_rng([seed, first])
    compute = chance.lognormal(-2, 0.1, rows)
    sync = chance.lognormal(-4, 0.5, rows)
    mean = chance.lognormal(0, 0.3, rows)
    lacks = chance.random(rows) < 0.05
    return StepColumns(
        iteration=tuple(range(first, first + rows)),
        shards=(4,) * rows,
        local_norm_sq=tuple(None if lack else x for lack, x in zip(lacks, 3 * mean, strict=True)),
        mean_norm_sq=tuple(None if lack else x for lack, x in zip(lacks, mean, strict=True)),
        compute_time=tuple(compute.tolist()),
        sync_time=tuple(sync.tolist()),
        step_time=tuple((compute + sync).tolist()),
        loss=tuple(chance.normal(1, 0.1, rows).tolist()),
        mean_compute_time=tuple((0.9 * compute).tolist()),
        fastest_compute_time=tuple((0.8 * compute).tolist()),
    )


def truth(values: Sequence[float]) -> Statistic:
    """Return the statistics of values, one after the other, with exact sums where that counts."""
    count = len(values)
    mean = math.fsum(values) / count
    distance = math.fsum((value - mean) ** 2 for value in values)
    fading = 0.0
    for value in values:
        fading = fading * FADE + value
    return Statistic(count, mean, distance, fading, min(values), max(values))


def differences(found: Statistic, told: Statistic, relative: float = 1e-9) -> list[str]:
    """Return what differs by more than rounding, in words."""
    size = max(abs(told.lowest), abs(told.highest))
    slack = {
        "mean": relative * abs(told.mean) + 1e-15 * size,
        "distance": relative * told.distance + 1e-14 * told.count * size * size,
        "fading": relative * abs(told.fading) + 1e-13 * size,
        "lowest": 0.0,
        "highest": 0.0,
        "count": 0.0,
    }
    pairs = {name: (getattr(found, name), getattr(told, name)) for name in slack}
    return [
        f"{name}: {is_} instead of {should}"
        for name, (is_, should) in pairs.items()
        if not abs(is_ - should) <= slack[name] + 1e-90
    ]
