"""A job with machines that said hello, written into a database, and what should be known of it."""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from sqlalchemy import Connection

from scavenger.protocol import Hello
from service.db import jobs, vms, workers
from service.db.telemetry import FADE_PER_ROW, SeriesStatistic
from tests.builders import spec


def set_up(connection: Connection, job: str, number: int) -> list[str]:
    """Write a job with so many machines that said hello; returns their names."""
    now = datetime.now(UTC)
    jobs.create(connection, job, spec(), now)
    for place in range(1, number + 1):
        terms = vms.BillingTerms(Decimal("0.36"))
        vms.record_intent(connection, job, place, terms, now, timedelta(hours=9))
        workers.record_hello(connection, job, Hello(f"{job}-w{place}", "127.0.0.1:1"), now)
    return [f"{job}-w{place}" for place in range(1, number + 1)]


def truth(values: Sequence[float]) -> SeriesStatistic:
    """Return the statistics of values, one after the other, with exact sums where that counts."""
    count = len(values)
    mean = math.fsum(values) / count
    distance = math.fsum((value - mean) ** 2 for value in values)
    fading = 0.0
    for value in values:
        fading = fading * FADE_PER_ROW + value
    return SeriesStatistic(count, mean, distance, fading, min(values), max(values))


def differences(found: SeriesStatistic, told: SeriesStatistic, relative: float = 1e-9) -> list[str]:
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


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
