"""Plans: what was foretold of a job document, and the job that was submitted from it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from scavenger.job.spec import JobSpec
from scavenger.job.validation import validate_job
from scavenger.schemas.plans import PlanView
from service.db.schema import plans

PLANS_KEPT = timedelta(days=1)  # after they expire, so that a repeated submission finds its job
MAX_PLANS_DELETED = 100


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan as stored.

    Attributes:
        spec: The job that was planned, with its price and machines written down.
        view: What was answered.
    """

    project: str
    spec: JobSpec
    view: PlanView


def store(
    connection: Connection, project: str, spec: JobSpec, view: PlanView, now: datetime
) -> None:
    """Store a plan, and drop some that expired long ago."""
    row = {"id": view.id, "project": project, "spec": spec.document()}
    moments = {"created_at": view.created_at, "expires_at": view.expires_at}
    content = view.model_dump(mode="json", exclude={"job"})
    connection.execute(insert(plans).values(**row, **moments, plan=content))
    old = select(plans.c.id).where(plans.c.expires_at < now - PLANS_KEPT).limit(MAX_PLANS_DELETED)
    # Postgres runs a plain subquery again for each row if it plans so, and then deletes more.
    free = old.with_for_update(skip_locked=True).cte("old_plans")
    connection.execute(delete(plans).where(plans.c.id.in_(select(free.c.id))))


def find(connection: Connection, plan: str, *, locks: bool = False) -> StoredPlan | None:
    """Return a plan, or None if there is none of that id.

    Args:
        connection: The database.
        plan: Its id.
        locks: Whether to keep others from submitting it until this transaction ends.
    """
    query = select(plans).where(plans.c.id == plan)
    row = connection.execute(query.with_for_update() if locks else query).one_or_none()
    return None if row is None else plan_of_row(row)


def record_submission(connection: Connection, plan: str, job: str) -> None:
    """Record the job that was submitted from a plan."""
    connection.execute(update(plans).where(plans.c.id == plan).values(job=job))


def plan_of_row(row: Row[Any]) -> StoredPlan:
    """Turn a row into the plan."""
    view = PlanView.model_validate({**row.plan, "job": row.job})
    return StoredPlan(row.project, validate_job(row.spec), view)
