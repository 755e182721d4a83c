"""A stored model in detail: what was forecast of its jobs, beside what came of them."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from sqlalchemy import Connection

from scavenger.job.planning import signature_of
from scavenger.schemas.base import MoneyView
from scavenger.schemas.jobs import JobPhase
from scavenger.schemas.models import ForecastView, ModelDetailView
from service import ledger
from service.db import curves, jobs, model_forecasts, vms
from service.db.jobs import JobFilter, StoredJob
from service.db.model_forecasts import ChosenForecast
from service.db.stored_models import ModelRow
from service.state.curves import optional_config_view
from service.state.presenters import money_view, stored_model_view

MAX_JOBS_SEARCHED, MAX_JOBS_SHOWN = 200, 20


def model_detail(
    connection: Connection, row: ModelRow, machine_type: str, now: datetime
) -> ModelDetailView:
    """Show a model with the newest jobs of its signature.

    Args:
        connection: Where from.
        row: The model.
        machine_type: Kind of the machines of jobs that name none.
        now: The moment.
    """
    wanted = JobFilter(model=row.model_key)
    listed = jobs.newest(connection, None, MAX_JOBS_SEARCHED, row.project, wanted)
    own = [
        job
        for job in listed
        if signature_of(job.spec, machine_type, job.framework) == row.model.signature
    ]
    own = own[:MAX_JOBS_SHOWN]
    ids = [job.id for job in own]
    told = model_forecasts.forecasts_of_jobs(connection, ids)
    machines = vms.of_jobs(connection, ids)
    shown = [forecast_view(job, told[job.id], ledger.booked(machines[job.id], now)) for job in own]
    summary = stored_model_view(row.model_key, row.model, row.updated_at)
    calibration = curves.judge_forecasts(connection, row.project, row.model_key, now)
    return ModelDetailView(
        **dict(summary), project=row.project, calibration=calibration, forecasts=shown
    )


def forecast_view(job: StoredJob, told: ChosenForecast, spent: Decimal) -> ForecastView:
    """Show what was forecast of a job, and what came of it."""
    low, cost, high = optional_costs(told)
    return ForecastView(
        job=job.id,
        name=job.name,
        phase=job.phase,
        chosen=optional_config_view(job.chosen),
        due_from=told.due_from,
        due_until=told.due_until,
        finished_at=job.finished_at,
        is_within=is_within(job, told),
        cost_low=low,
        cost=cost,
        cost_high=high,
        spent=money_view(spent),
    )


def optional_costs(told: ChosenForecast) -> tuple[MoneyView | None, ...]:
    """Show the costs that were forecast, if any were."""
    if told.costs is None:
        return None, None, None
    return tuple(money_view(each) for each in told.costs)


def is_within(job: StoredJob, told: ChosenForecast) -> bool | None:
    """Tell whether a job ended when it should; None where that cannot be judged."""
    if job.phase is not JobPhase.SUCCEEDED or job.finished_at is None:
        return None
    if told.due_from is None or told.due_until is None:
        return None
    return told.due_from <= job.finished_at <= told.due_until
