"""Totals over all jobs, for the Prometheus endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from sqlalchemy import Connection, Numeric, cast, func, select

from scavenger.schemas.jobs import JobPhase
from scavenger.schemas.machines import SweepView
from service.db import clock, sweeps
from service.db.schema import FINAL_PHASES, jobs, outcomes, vms, workers
from service.db.vms import Vm, seen_prices

MAX_FORECASTS = 100  # older ones were made by other laws


@dataclass(frozen=True, slots=True)
class InstallationTotals:
    """How things stand, over all jobs, at one moment of the database's clock.

    Attributes:
        jobs: How many are in which phase.
        machines: Those of jobs that go on, and all that may exist.
        caps: Dollars that the jobs which go on may cost, of those that have a limit.
        longest_silence_seconds: Seconds since that worker spoke which has been silent for
            longest; None without any that should speak.
        forecast_count: Newest jobs that succeeded and had a forecast of their end.
        forecasts_met: How many of them ended within the forecast interval.
        sweep: The newest finished sweep of the garbage collector.
    """

    now: datetime
    jobs: Mapping[JobPhase, int]
    machines: tuple[Vm, ...]
    caps: Decimal
    longest_silence_seconds: float | None
    forecast_count: int
    forecasts_met: int
    sweep: SweepView | None


def read_totals(connection: Connection) -> InstallationTotals:
    """Return how things stand."""
    counts = connection.execute(select(outcomes.c.phase, func.count()).group_by(outcomes.c.phase))
    count, met = _forecasts(connection)
    return InstallationTotals(
        now=clock.read(connection),
        sweep=next(iter(sweeps.newest(connection, 1)), None),
        forecast_count=count,
        forecasts_met=met,
        jobs={JobPhase(phase): number for phase, number in counts},
        machines=_machines(connection),
        caps=_caps(connection),
        longest_silence_seconds=_silence(connection),
    )


def _machines(connection: Connection) -> tuple[Vm, ...]:
    unfinished = select(outcomes.c.job).where(outcomes.c.phase.not_in(FINAL_PHASES))
    query = select(vms).where((vms.c.state != "gone") | vms.c.job.in_(unfinished))
    rows = connection.execute(query).mappings()
    machines = [Vm(**row, exit_code=None, tail="") for row in rows]
    spot = [vm.id for vm in machines if vm.market == "spot"]
    seen = seen_prices(connection, spot) if spot else {}
    return tuple(replace(vm, prices=seen.get(vm.id, ())) for vm in machines)


def _caps(connection: Connection) -> Decimal:
    written = jobs.c.spec["limits"]["max_cost"].astext  # such as 40.00 USD
    total = func.sum(cast(func.split_part(written, " ", 1), Numeric))
    query = select(func.coalesce(total, 0)).join(outcomes, outcomes.c.job == jobs.c.id)
    return Decimal(
        connection.execute(query.where(outcomes.c.phase.not_in(FINAL_PHASES))).scalar_one()
    )


def _forecasts(connection: Connection) -> tuple[int, int]:
    held = outcomes.c.finished_at.between(outcomes.c.due_from, outcomes.c.due_until)
    newest = (
        select(held.label("held"))
        .where(outcomes.c.phase == JobPhase.SUCCEEDED, outcomes.c.due_until.is_not(None))
        .order_by(outcomes.c.finished_at.desc())
        .limit(MAX_FORECASTS)
        .subquery()
    )
    query = select(func.count(), func.count().filter(newest.c.held)).select_from(newest)
    count, met = connection.execute(query).one()
    return count, met


def _silence(connection: Connection) -> float | None:
    spoken = func.min(workers.c.seen_at)
    query = (
        select(func.extract("epoch", func.now() - spoken))
        .join(vms, vms.c.id == workers.c.worker)
        .join(outcomes, outcomes.c.job == workers.c.job)
        .where(vms.c.state == "launched", outcomes.c.phase.not_in(FINAL_PHASES))
        .where(workers.c.finished.is_(None), workers.c.address != "")
    )
    silence = connection.execute(query).scalar()
    return None if silence is None else max(float(silence), 0.0)
